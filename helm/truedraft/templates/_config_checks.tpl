{{/* What cluster/config asks of several fields together; its JSON Schema in values.schema.json says the rest. */}}
{{- define "truedraft.configChecks" -}}
{{- $laws := default dict .laws -}}
{{- $default := dig "default" "coupled" $laws -}}
{{- if not (has $default (dig "allowed" (list "none" "coupled" "rejection" "block") $laws)) -}}
{{- fail (printf "config.laws.default is %s, which is not among config.laws.allowed; a lossy law can be no default." $default) -}}
{{- end -}}
{{- range $law := $laws.lossy -}}
{{- range $field := list "max_distortion" "max_overshoot" -}}
{{- if and (hasPrefix "truncation:" $law) (not (kindIs "invalid" (get $laws $field))) -}}
{{- fail (printf "config.laws.lossy has %s, which keeps no config.laws.%s." $law $field) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- $verifier := default dict .verifier -}}
{{- $most := int (dig "block_length" 8 $verifier) -}}
{{- $least := int (dig "block_length_min" 0 $verifier) -}}
{{- if gt $least $most -}}
{{- fail (printf "config.verifier.block_length_min is %d, more than block_length, which is %d." $least $most) -}}
{{- end -}}
{{- $rows := int (dig "step_rows" 640 $verifier) -}}
{{- $needed := mul (int (dig "max_active" 64 $verifier)) (add1 $most) -}}
{{- if lt $rows (int $needed) -}}
{{- fail (printf "config.verifier.step_rows is %d, less than max_active x (block_length + 1), which is %d." $rows $needed) -}}
{{- end -}}
{{- $drafter := default dict .drafter -}}
{{- range $role, $section := dict "verifier" $verifier "drafter" $drafter -}}
{{- $replicas := int (dig "replicas" 1 $section) -}}
{{- if and $section.max_replicas (lt (int $section.max_replicas) $replicas) -}}
{{- fail (printf "config.%s.max_replicas is %d, less than replicas, which is %d." $role (int $section.max_replicas) $replicas) -}}
{{- end -}}
{{- end -}}
{{- $kind := dig "kind" "ngram" $drafter -}}
{{- if and (eq $kind "ngram") $drafter.model -}}
{{- fail "config.drafter.model is set, but config.drafter.kind ngram takes none." -}}
{{- end -}}
{{- if and (eq (dig "mode" "remote" $drafter | toString) "local") (ne $kind "ngram") -}}
{{- fail (printf "config.drafter.mode local drafts with kind ngram only, not %s." $kind) -}}
{{- end -}}
{{- with $drafter.ports -}}
{{- if gt (first . | int) (last . | int) -}}
{{- fail (printf "config.drafter.ports are first and last of a range, not %d and %d." (first . | int) (last . | int)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
