{{/* What the schema cannot say; each failure is one sentence. */}}
{{- define "truedraft.checks" -}}
{{- $values := .Values -}}
{{- if not (.Capabilities.APIVersions.Has "ray.io/v1") -}}
{{- fail "This cluster does not know ray.io/v1 RayService: install the KubeRay operator (1.6 or newer) first; with `helm template` add --api-versions ray.io/v1." -}}
{{- end -}}
{{- if gt (len (include "truedraft.fullname" .)) 40 -}}
{{- fail "fullnameOverride must be at most 40 characters, since KubeRay appends to it." -}}
{{- end -}}
{{- if eq (toString $values.image.tag) "latest" -}}
{{- fail "image.tag must not be latest: name a version, or a digest." -}}
{{- end -}}

{{- include "truedraft.configChecks" .Values.config -}}

{{- if not $values.verifiers -}}
{{- fail "verifiers must name at least one group of pods; see examples/." -}}
{{- end -}}
{{- if and (include "truedraft.remote" .) (not $values.drafters) -}}
{{- fail "drafters must name at least one group of pods, unless config.drafter.mode is local or off." -}}
{{- end -}}
{{- if and (not (include "truedraft.remote" .)) $values.drafters -}}
{{- fail (printf "drafters has groups, but config.drafter.mode is %s." (dig "drafter" "mode" "" $values.config | toString)) -}}
{{- end -}}

{{- range $role := list "verifier" "drafter" -}}
{{- $groups := get $values (printf "%ss" $role) -}}
{{- if $groups -}}
{{- $device := dig $role "device" "cpu" $values.config -}}
{{- $slots := include "truedraft.slots" (dict "root" $ "role" $role) | fromYaml -}}
{{- $room := 0 -}}
{{- range $name, $group := $groups -}}
{{- $where := printf "%ss.%s" $role $name -}}
{{- if and (hasPrefix "cuda" $device) (not $group.gpu) -}}
{{- fail (printf "%s has no gpu, but config.%s.device is %s." $where $role $device) -}}
{{- end -}}
{{- if and $group.gpu (not (hasPrefix "cuda" $device)) -}}
{{- fail (printf "%s has GPUs, but config.%s.device is %s; set it to cuda." $where $role $device) -}}
{{- end -}}
{{- $replicas := int $group.replicas -}}
{{- $least := int (default $replicas $group.minReplicas) -}}
{{- $most := int (default $replicas $group.maxReplicas) -}}
{{- if and (hasKey $group "minReplicas") (eq (int $group.minReplicas) 0) -}}{{- $least = 0 -}}{{- end -}}
{{- if or (gt $least $most) (gt $replicas $most) (lt $replicas $least) -}}
{{- fail (printf "%s: minReplicas <= replicas <= maxReplicas does not hold: %d, %d, %d." $where $least $replicas $most) -}}
{{- end -}}
{{- if and (ne $least $most) (not $values.autoscaling.enabled) -}}
{{- fail (printf "%s: minReplicas and maxReplicas differ, but autoscaling.enabled is false." $where) -}}
{{- end -}}
{{- $perPod := include "truedraft.perPod" (dict "root" $ "role" $role "group" $group) | int -}}
{{- if lt $perPod 1 -}}
{{- fail (printf "%s: a replica takes %v GPUs (config.%s.placement.num_gpus), a pod has %v." $where $slots.num_gpus $role (dig "gpu" "count" 0 $group)) -}}
{{- end -}}
{{- $room = add $room (mul $most $perPod) -}}
{{- end -}}
{{- $field := ternary "max_replicas" "replicas" (hasKey (dig $role dict $values.config) "max_replicas") -}}
{{- $wanted := dig $role $field 1 $values.config | int -}}
{{- if gt $wanted (int $room) -}}
{{- fail (printf "config.%s.%s is %d, but the groups in %ss have room for %d." $role $field $wanted $role (int $room)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- if include "truedraft.secured" . -}}
{{- if not (or $values.channel.existingSecret $values.channel.certManager.enabled) -}}
{{- fail "Drafts would cross the network in plain text: set channel.existingSecret or channel.certManager.enabled, or config.channel.plaintext." -}}
{{- end -}}
{{- if and $values.channel.existingSecret $values.channel.certManager.enabled -}}
{{- fail "channel.existingSecret and channel.certManager.enabled exclude each other." -}}
{{- end -}}
{{- end -}}
{{- if $values.channel.certManager.enabled -}}
{{- include "truedraft.needs" (dict "root" . "api" "cert-manager.io/v1" "for" "channel.certManager.enabled") -}}
{{- end -}}

{{- $sources := 0 -}}
{{- range list $values.model.pvc.claimName $values.model.image.reference $values.model.objectStore.source -}}
{{- if . }}{{ $sources = add1 $sources }}{{ end -}}
{{- end -}}
{{- if gt $sources 1 -}}
{{- fail "Weights come from one place: set only one of model.pvc, model.image and model.objectStore." -}}
{{- end -}}
{{- $model := dig "model" "" $values.config -}}
{{- if and (eq $sources 1) (ne $model $values.model.mountPath) (not (hasPrefix (printf "%s/" $values.model.mountPath) $model)) -}}
{{- fail (printf "config.model is %q, but the weights are mounted at %s." $model $values.model.mountPath) -}}
{{- end -}}

{{- if not $values.gateway.onHead -}}
{{- if gt (include "truedraft.gatewayCpus" . | float64) 1.0 -}}
{{- fail "config.gateway.placement.num_cpus must be at most 1, which is what a pod of the gateway has." -}}
{{- end -}}
{{- $pods := include "truedraft.gatewaySlots" . | int -}}
{{- if gt $pods (int $values.gateway.replicas) -}}
{{- fail (printf "config.gateway.replicas needs %d pods of the gateway, gateway.replicas is %d." $pods (int $values.gateway.replicas)) -}}
{{- end -}}
{{- end -}}

{{- if and (eq $values.upgrade.strategy "NewClusterWithIncrementalUpgrade") (not $values.upgrade.gatewayClassName) -}}
{{- fail "upgrade.strategy NewClusterWithIncrementalUpgrade needs upgrade.gatewayClassName." -}}
{{- end -}}
{{- if $values.ingress.enabled -}}
{{- if not $values.ingress.host -}}{{- fail "ingress.enabled needs ingress.host." -}}{{- end -}}
{{- if not $values.ingress.tlsSecret -}}{{- fail "ingress.enabled needs ingress.tlsSecret: prompts do not travel in plain text." -}}{{- end -}}
{{- end -}}
{{- if $values.gatewayAPI.enabled -}}
{{- if not $values.gatewayAPI.parentRefs -}}{{- fail "gatewayAPI.enabled needs gatewayAPI.parentRefs." -}}{{- end -}}
{{- include "truedraft.needs" (dict "root" . "api" "gateway.networking.k8s.io/v1" "for" "gatewayAPI.enabled") -}}
{{- end -}}
{{- if and $values.networkPolicy.enabled (include "truedraft.remote" .) (not (dig "drafter" "ports" list $values.config)) -}}
{{- fail "config.drafter.ports must name the first and last port of drafters, which the NetworkPolicy opens to verifiers." -}}
{{- end -}}
{{- if and (or $values.ingress.enabled $values.gatewayAPI.enabled) $values.networkPolicy.enabled (not $values.networkPolicy.clients) -}}
{{- fail "networkPolicy.clients must name the pods of the Ingress controller or the Gateway, which could not reach the gateway otherwise." -}}
{{- end -}}
{{- $anonymous := dig "gateway" "anonymous" false $values.config -}}
{{- if not (or $anonymous $values.apiKeys.existingSecret) -}}
{{- fail "Whoever reaches the gateway would be answered without a key: set apiKeys.existingSecret, or config.gateway.anonymous." -}}
{{- end -}}
{{- if and $anonymous $values.apiKeys.existingSecret -}}
{{- fail "config.gateway.anonymous and apiKeys.existingSecret exclude each other." -}}
{{- end -}}
{{- if and $values.apiKeys.existingSecret $values.monitoring.scrapeConfig.enabled (not $values.monitoring.scrapeConfig.credentials.existingSecret) -}}
{{- fail "monitoring.scrapeConfig.credentials must name an operator's API key, since the gateway asks for keys (apiKeys.existingSecret)." -}}
{{- end -}}
{{- range $name := list "podMonitor" "prometheusRule" "scrapeConfig" -}}
{{- if (get $values.monitoring $name).enabled -}}
{{- $api := ternary "monitoring.coreos.com/v1alpha1" "monitoring.coreos.com/v1" (eq $name "scrapeConfig") -}}
{{- include "truedraft.needs" (dict "root" $ "api" $api "for" (printf "monitoring.%s.enabled" $name)) -}}
{{- end -}}
{{- end -}}
{{- if and $values.telemetry.jaeger.enabled $values.telemetry.otlp.endpoint -}}
{{- fail "telemetry.jaeger.enabled and telemetry.otlp.endpoint exclude each other." -}}
{{- end -}}
{{- end -}}

{{/* dict: root, api, for. */}}
{{- define "truedraft.needs" -}}
{{- if not (.root.Capabilities.APIVersions.Has .api) -}}
{{- fail (printf "%s needs %s, which this cluster does not know; with `helm template` add --api-versions %s." .for .api .api) -}}
{{- end -}}
{{- end -}}
