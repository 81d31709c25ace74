{{/*
Set in a Deployment or Job what the values of its part say. Arguments: root, object, part, and set, which has variables of the
environment that the chart makes of other values. The object is changed in place; nothing is printed.
*/}}
{{- define "soong.workload" -}}
{{- $root := .root -}}
{{- $values := index $root.Values .part -}}
{{- $pod := .object.spec.template -}}
{{- $spec := $pod.spec -}}
{{- $container := first $spec.containers -}}
{{- $_ := set $container "image" (include "soong.image" $root) -}}
{{- with $root.Values.image.pullPolicy }}{{ $_ := set $container "imagePullPolicy" . }}{{ end -}}
{{- with $root.Values.image.pullSecrets }}{{ $_ := set $spec "imagePullSecrets" . }}{{ end -}}
{{- $_ := set $container "resources" $values.resources -}}
{{- if hasKey $values "replicas" -}}
{{- if kindIs "invalid" $values.replicas }}{{ $_ := unset .object.spec "replicas" -}}
{{- else }}{{ $_ := set .object.spec "replicas" $values.replicas }}{{ end -}}
{{- end -}}
{{- include "soong.environment" (dict "container" $container "set" (merge (dict) (default (dict) .set) (default (dict) $values.env))) -}}
{{- with $values.envFrom }}{{ $_ := set $container "envFrom" . }}{{ end -}}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" -}}
{{- with index $values $key }}{{ $_ := set $spec $key . }}{{ end -}}
{{- end -}}
{{- with $values.podAnnotations }}{{ $_ := set $pod.metadata "annotations" . }}{{ end -}}
{{- with $values.podLabels }}{{ $_ := set $pod.metadata "labels" (merge (deepCopy $pod.metadata.labels) .) }}{{ end -}}
{{- with $values.extraVolumes }}{{ $_ := set $spec "volumes" (concat $spec.volumes .) }}{{ end -}}
{{- with $values.extraVolumeMounts }}{{ $_ := set $container "volumeMounts" (concat $container.volumeMounts .) }}{{ end -}}
{{- range $volume := $spec.volumes -}}
{{- if and $volume.secret (eq $volume.name "secrets") }}{{ $_ := set $volume.secret "secretName" (index $root.Values.secrets $.part) }}{{ end -}}
{{- if eq $volume.name "config" }}{{ include "soong.config-volume" (dict "root" $root "volume" $volume) }}{{ end -}}
{{- if and $volume.persistentVolumeClaim (hasKey $root.Values.storage $volume.name) -}}
{{- with (index $root.Values.storage $volume.name).existingClaim }}{{ $_ := set $volume.persistentVolumeClaim "claimName" . }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if and (ne .part "migrate") (ne .part "flower") (not $root.Values.config.existingConfigMap) -}}
{{- $checksum := toJson $root.Values.config.files | sha256sum -}}
{{- $_ := set $pod.metadata "annotations" (merge (dict "soong/config" $checksum) (default (dict) $pod.metadata.annotations)) -}}
{{- end -}}
{{- end }}

{{/* Set variables of a container: in place where there is one of the name, at the end otherwise. */}}
{{- define "soong.environment" -}}
{{- $found := list -}}
{{- range $variable := .container.env -}}
{{- $found = append $found $variable.name -}}
{{- if hasKey $.set $variable.name }}{{ $_ := set $variable "value" (index $.set $variable.name | toString) }}{{ end -}}
{{- end -}}
{{- range $name, $value := .set -}}
{{- if not (has $name $found) -}}
{{- $_ := set $.container "env" (append $.container.env (dict "name" $name "value" (toString $value))) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Mount the configuration: the ConfigMap by its name, each file of the values at its path. */}}
{{- define "soong.config-volume" -}}
{{- $config := .root.Values.config -}}
{{- if $config.existingConfigMap -}}
{{- $_ := set .volume.configMap "name" $config.existingConfigMap -}}
{{- else if ne (keys $config.files | sortAlpha | join "|") "config.toml" -}}
{{- $items := list -}}
{{- range $path, $_ := $config.files }}{{ $items = append $items (dict "key" (replace "/" "__" $path) "path" $path) }}{{ end -}}
{{- $_ := set .volume.configMap "items" $items -}}
{{- end -}}
{{- end }}
