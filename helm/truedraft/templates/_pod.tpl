{{/* One pod of Ray. dict: root, role (head, gateway, verifier, drafter), pod (its settings), resources, gpu, account, automount. */}}
{{- define "truedraft.pod" -}}
{{- $root := .root -}}
{{- $values := .root.Values -}}
{{- $pod := default dict .pod -}}
{{- $model := $values.model -}}
{{- $resources := deepCopy .resources -}}
{{- with .gpu -}}
{{- range $kind := list "requests" "limits" -}}
{{- $_ := set (get $resources $kind) (default "nvidia.com/gpu" $.gpu.resource) $.gpu.count -}}
{{- end -}}
{{- end -}}
{{- $channel := and (include "truedraft.secured" $root) (has .role (list "verifier" "drafter")) -}}
{{- $keys := and $values.apiKeys.existingSecret (eq .role (ternary "head" "gateway" $values.gateway.onHead)) -}}
metadata:
  labels:
    {{- include "truedraft.role" . | nindent 4 }}
    {{- with $pod.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $pod.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ .account }}
  automountServiceAccountToken: {{ .automount }}
  enableServiceLinks: false
  {{- with $values.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  securityContext:
    {{- mergeOverwrite (deepCopy $values.podSecurityContext) (default dict $pod.podSecurityContext) | toYaml | nindent 4 }}
  {{- with $pod.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $pod.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $pod.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $pod.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- range . }}
    - {{- $selector := dict "matchLabels" (include "truedraft.role" $ | fromYaml) }}
      {{- merge (dict) . (dict "labelSelector" $selector) | toYaml | nindent 6 }}
    {{- end }}
  {{- end }}
  {{- with $pod.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $pod.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  terminationGracePeriodSeconds: {{ default 60 $pod.terminationGracePeriodSeconds }}
  {{- $carries := or (ne .role "head") $values.gateway.onHead }}
  {{- if and $model.objectStore.source $carries }}
  initContainers:
    - name: model
      image: {{ $model.objectStore.image }}
      args: [copy, --checksum, {{ $model.objectStore.source | quote }}, {{ $model.mountPath }}]
      {{- with $model.objectStore.credentialsSecret }}
      envFrom:
        - secretRef: {name: {{ . }}}
      {{- end }}
      env:
        - {name: XDG_CACHE_HOME, value: /tmp}
      resources:
        {{- toYaml $model.objectStore.resources | nindent 8 }}
      securityContext:
        {{- toYaml $values.securityContext | nindent 8 }}
      volumeMounts:
        - {name: model, mountPath: {{ $model.mountPath }}}
        - {name: tmp, mountPath: /tmp}
  {{- end }}
  containers:
    - name: ray-{{ if eq .role "head" }}head{{ else }}worker{{ end }}
      image: {{ include "truedraft.image" (dict "root" $root "image" $pod.image) }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      ports:
        {{- if eq .role "head" }}
        - {name: gcs-server, containerPort: 6379}
        - {name: dashboard, containerPort: 8265}
        {{- end }}
        - {name: serve, containerPort: 8000}
        - {name: serve-grpc, containerPort: 9000}
        - {name: metrics, containerPort: 8080}
      env:
        {{- include "truedraft.env" $root | nindent 8 }}
        {{- with $pod.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      resources:
        {{- toYaml $resources | nindent 8 }}
      securityContext:
        {{- mergeOverwrite (deepCopy $values.securityContext) (default dict $pod.securityContext) | toYaml | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        - {name: home, mountPath: /home/truedraft}
        - {name: shm, mountPath: /dev/shm}
        - {name: cache, mountPath: /var/cache/truedraft}
        {{- if and $carries (or $model.pvc.claimName $model.image.reference $model.objectStore.source) }}
        - name: model
          mountPath: {{ $model.mountPath }}
          readOnly: true
          {{- with $model.pvc.subPath }}
          subPath: {{ . }}
          {{- end }}
        {{- end }}
        {{- if $channel }}
        - {name: channel, mountPath: {{ $values.channel.mountPath }}, readOnly: true}
        {{- end }}
        {{- if $keys }}
        {{- /* Whole, not by subPath: a changed Secret would not reach it. */}}
        - {name: keys, mountPath: {{ $values.apiKeys.mountPath }}, readOnly: true}
        {{- end }}
        {{- with $pod.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - {name: tmp, emptyDir: {}}
    - {name: home, emptyDir: {}}
    - {name: shm, emptyDir: {medium: Memory, sizeLimit: {{ default "2Gi" $pod.shmSize }}}}
    {{- if $values.cache.claimName }}
    - {name: cache, persistentVolumeClaim: {claimName: {{ $values.cache.claimName }}}}
    {{- else }}
    - {name: cache, emptyDir: {sizeLimit: {{ $values.cache.size }}}}
    {{- end }}
    {{- if $carries }}
    {{- if $model.pvc.claimName }}
    - {name: model, persistentVolumeClaim: {claimName: {{ $model.pvc.claimName }}, readOnly: true}}
    {{- else if $model.image.reference }}
    - {name: model, image: {reference: {{ $model.image.reference | quote }}, pullPolicy: {{ $model.image.pullPolicy }}}}
    {{- else if $model.objectStore.source }}
    - {name: model, emptyDir: {}}
    {{- end }}
    {{- end }}
    {{- if $channel }}
    - {name: channel, secret: {secretName: {{ include "truedraft.channelSecret" $root }}, defaultMode: 0440}}
    {{- end }}
    {{- if $keys }}
    {{- $item := dict "key" $values.apiKeys.key "path" $values.apiKeys.key }}
    - {name: keys, secret: {secretName: {{ $values.apiKeys.existingSecret }}, items: {{ list $item | toJson }}, defaultMode: 0440}}
    {{- end }}
    {{- with $pod.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* Environment of every Ray container. */}}
{{- define "truedraft.env" -}}
- {name: HOME, value: /home/truedraft}
- {name: TRUEDRAFT_CACHE, value: /var/cache/truedraft}
- {name: HF_HOME, value: /var/cache/truedraft/huggingface}
- {name: PYTHONDONTWRITEBYTECODE, value: "1"}
- {name: RAY_USAGE_STATS_ENABLED, value: "0"}
- {name: RAY_SERVE_GRPC_MAX_MESSAGE_SIZE, value: "67108864"}
{{- with .Values.model.hub.existingSecret }}
- name: HF_TOKEN
  valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ $.Values.model.hub.key }}}}
{{- end }}
{{- with include "truedraft.otlpEndpoint" . }}
- {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ . | quote }}}
- {name: OTEL_TRACES_SAMPLER, value: parentbased_traceidratio}
- {name: OTEL_TRACES_SAMPLER_ARG, value: {{ $.Values.telemetry.samplingRatio | quote }}}
- {name: TRUEDRAFT_TRACE_DETAIL, value: {{ $.Values.telemetry.detail }}}
- {name: TRUEDRAFT_TRACE_ROUNDS, value: {{ $.Values.telemetry.maxRounds | quote }}}
- {name: TRUEDRAFT_TRACE_SHARE, value: {{ $.Values.telemetry.detailShare | quote }}}
{{- with $.Values.telemetry.resourceAttributes }}
{{- $pairs := list }}
{{- range $name, $value := . }}{{ $pairs = append $pairs (printf "%s=%s" $name $value) }}{{ end }}
- {name: OTEL_RESOURCE_ATTRIBUTES, value: {{ join "," $pairs | quote }}}
{{- end }}
{{- with $.Values.telemetry.otlp.existingSecret }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ $.Values.telemetry.otlp.key }}}}
{{- end }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}
