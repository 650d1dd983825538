{{/* What Ray Serve is to run: two applications, each with a configuration as its arguments. */}}

{{/* GPUs of one replica and replicas of one pod of a role, as YAML. dict: root, role (verifier, drafter). */}}
{{- define "truedraft.slots" -}}
{{- $section := dig .role dict .root.Values.config -}}
{{- $groups := get .root.Values (printf "%ss" .role) | default dict -}}
{{- $counts := list -}}
{{- range $groups }}{{ $counts = append $counts (dig "gpu" "count" 0 . | int) }}{{ end -}}
{{- $counts = uniq $counts -}}
{{- $gpus := dig "placement" "num_gpus" nil $section -}}
{{- if kindIs "invalid" $gpus -}}
{{- if gt (len $counts) 1 -}}
{{- fail (printf "%ss: groups with different gpu.count need config.%s.placement.num_gpus, the GPUs of one replica." .role .role) -}}
{{- end -}}
{{- $gpus = default 0 (first $counts) -}}
{{- end -}}
num_gpus: {{ $gpus }}
num_cpus: {{ dig "placement" "num_cpus" 1 $section }}
{{- end -}}

{{/* Replicas that one pod of a group has room for. dict: root, role, group. */}}
{{- define "truedraft.perPod" -}}
{{- $slots := include "truedraft.slots" . | fromYaml -}}
{{- $count := dig "gpu" "count" 0 .group -}}
{{- if gt (float64 $slots.num_gpus) 0.0 -}}
{{- divf $count $slots.num_gpus | floor | int -}}
{{- else -}}
1
{{- end -}}
{{- end -}}

{{/* A section of the configuration with its placement filled in and its replicas left to `deployments`. */}}
{{- define "truedraft.section" -}}
{{- $section := deepCopy (dig .role dict .root.Values.config) -}}
{{- $placement := dict "label_selector" (dict "truedraft.io/role" .role) -}}
{{- if ne .role "gateway" -}}
{{- $placement = merge $placement (include "truedraft.slots" . | fromYaml) -}}
{{- else -}}
{{- $_ := set $placement "num_cpus" (include "truedraft.gatewayCpus" .root | float64) -}}
{{- with .root.Values.apiKeys -}}
{{- if .existingSecret }}{{ $_ := set $section "keys_file" (printf "%s/%s" .mountPath .key) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $_ := set $section "placement" (mergeOverwrite $placement (dig "placement" dict $section)) -}}
{{- toYaml (omit $section "replicas" "max_replicas") -}}
{{- end -}}

{{/* CPUs that one replica of the gateway reserves; a pod of the gateway has one. */}}
{{- define "truedraft.gatewayCpus" -}}
{{- dig "gateway" "placement" "num_cpus" 0.5 .Values.config -}}
{{- end -}}

{{/* CPUs that all of them need together. */}}
{{- define "truedraft.gatewaySlots" -}}
{{- mulf (include "truedraft.gatewayCpus" .) (include "truedraft.replicas" (dict "root" . "role" "gateway")) | ceil | int -}}
{{- end -}}

{{- define "truedraft.replicas" -}}
{{- dig .role "replicas" 1 .root.Values.config -}}
{{- end -}}

{{- define "truedraft.serveConfig" -}}
{{- $config := deepCopy .Values.config -}}
{{- if include "truedraft.secured" . -}}
{{- $files := dict "certificate" "tls.crt" "private_key" "tls.key" "authority" "ca.crt" -}}
{{- range $field, $file := $files }}{{ $_ := set $files $field (printf "%s/%s" $.Values.channel.mountPath $file) }}{{ end -}}
{{- $_ := set $config "channel" (merge $files (dig "channel" dict $config)) -}}
{{- end -}}
{{- $serving := omit $config "gateway" "verifier" "drafter" -}}
{{- $_ := set $serving "gateway" (include "truedraft.section" (dict "root" . "role" "gateway") | fromYaml) -}}
{{- $_ := set $serving "verifier" (include "truedraft.section" (dict "root" . "role" "verifier") | fromYaml) -}}
{{- $_ := set $serving "drafter" (dict "mode" (dig "drafter" "mode" "remote" .Values.config | toString)) -}}
{{- $logging := dict "log_level" "WARNING" "enable_access_log" false -}}
proxy_location: EveryNode
http_options:
  host: 0.0.0.0
  port: 8000
grpc_options:
  port: 9000
  grpc_servicer_functions:
    - cluster.gateway.servicer.add_to_proxy
logging_config: {{ toJson $logging }}
applications:
  - name: truedraft
    route_prefix: /
    import_path: cluster.applications:truedraft
    logging_config: {{ toJson $logging }}
    args:
      {{- toYaml $serving | nindent 6 }}
    deployments:
      - name: GatewayDeployment
        num_replicas: {{ include "truedraft.replicas" (dict "root" . "role" "gateway") }}
      - name: VerifierDeployment
        {{- $verifier := dig "verifier" dict .Values.config }}
        {{- if $verifier.max_replicas }}
        autoscaling_config:
          min_replicas: {{ include "truedraft.replicas" (dict "root" . "role" "verifier") }}
          max_replicas: {{ $verifier.max_replicas }}
          target_ongoing_requests: {{ default 64 $verifier.max_active }}
        {{- else }}
        num_replicas: {{ include "truedraft.replicas" (dict "root" . "role" "verifier") }}
        {{- end }}
{{- if include "truedraft.remote" . }}
{{- $drafting := pick $config "model" "cache_dir" "channel" -}}
{{- $_ := set $drafting "drafter" (include "truedraft.section" (dict "root" . "role" "drafter") | fromYaml) }}
  - name: truedraft-drafters
    route_prefix: null
    import_path: cluster.applications:drafters
    logging_config: {{ toJson $logging }}
    args:
      {{- toYaml $drafting | nindent 6 }}
    deployments:
      - name: DrafterDeployment
        {{- $drafter := dig "drafter" dict .Values.config }}
        {{- if $drafter.max_replicas }}
        autoscaling_config:
          min_replicas: {{ include "truedraft.replicas" (dict "root" . "role" "drafter") }}
          max_replicas: {{ $drafter.max_replicas }}
          target_ongoing_requests: {{ default 4 $drafter.target_blocks }}
          policy:
            policy_function: drafter_service.scaling:by_wanted_blocks
        {{- else }}
        num_replicas: {{ include "truedraft.replicas" (dict "root" . "role" "drafter") }}
        {{- end }}
{{- end }}
{{- end -}}

{{/* Ports that Ray would otherwise draw at random, fixed so that a NetworkPolicy can name them. */}}
{{- define "truedraft.rayPorts" -}}
node-manager-port: "10010"
object-manager-port: "10011"
runtime-env-agent-port: "10012"
dashboard-agent-grpc-port: "10013"
dashboard-agent-listen-port: "52365"
metrics-export-port: "8080"
min-worker-port: "10100"
max-worker-port: "10999"
{{- end -}}

{{/* The same as ports of a NetworkPolicy, with those of the head and of the proxies. */}}
{{- define "truedraft.networkPorts" -}}
- {protocol: TCP, port: 6379}
- {protocol: TCP, port: 8000}
- {protocol: TCP, port: 8265}
- {protocol: TCP, port: 9000}
- {protocol: TCP, port: 10010, endPort: 10013}
- {protocol: TCP, port: 10100, endPort: 10999}
- {protocol: TCP, port: 52365}
{{- end -}}
