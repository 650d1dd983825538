{{/* Names, labels, images. */}}

{{- define "truedraft.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "truedraft.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "truedraft.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{ include "truedraft.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* Selects the pods of Ray by role. dict: root, role. */}}
{{- define "truedraft.role" -}}
{{ include "truedraft.selector" .root }}
app.kubernetes.io/component: {{ .role }}
{{- end -}}

{{- define "truedraft.serveService" -}}
{{ include "truedraft.fullname" . }}-serve-svc
{{- end -}}

{{- define "truedraft.serviceAccount" -}}
{{- default (include "truedraft.fullname" .) .Values.serviceAccount.name -}}
{{- end -}}

{{/* A reference that names one image. dict: root, image (a group's own fields win, over the chart's digest too). */}}
{{- define "truedraft.image" -}}
{{- $chart := ternary .root.Values.image (omit .root.Values.image "digest") (empty .image) -}}
{{- $image := mergeOverwrite (deepCopy $chart) (default dict .image) -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default (printf "%s-%s" .root.Chart.AppVersion $image.variant) $image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "truedraft.channelSecret" -}}
{{- default (printf "%s-channel" (include "truedraft.fullname" .)) .Values.channel.existingSecret -}}
{{- end -}}

{{/* "true" if drafts leave the verifiers' pods. */}}
{{- define "truedraft.remote" -}}
{{- $mode := dig "drafter" "mode" "remote" .Values.config -}}
{{- if has (toString $mode) (list "remote" "both") -}}true{{- end -}}
{{- end -}}

{{/* "true" if the stream between verifiers and drafters has certificates. */}}
{{- define "truedraft.secured" -}}
{{- if and (include "truedraft.remote" .) (not (dig "channel" "plaintext" false .Values.config)) -}}true{{- end -}}
{{- end -}}

{{- define "truedraft.otlpEndpoint" -}}
{{- if .Values.telemetry.jaeger.enabled -}}
http://{{ include "truedraft.fullname" . }}-jaeger:4317
{{- else -}}
{{ .Values.telemetry.otlp.endpoint }}
{{- end -}}
{{- end -}}
