{{/*
The chart has no manifests of its own: it takes those of deploy/kubernetes (the link `manifests`) as objects, sets what the values
say, and prints them. So both ways of installing make the same objects (tests/integration/test_chart.py).
*/}}

{{/* The objects of one file of the manifests, in the namespace of the release: {"items": [...]}. */}}
{{- define "soong.objects" -}}
{{- $text := .root.Files.Get (printf "manifests/%s" .file) | required (printf "manifests/%s is not in this chart" .file) -}}
{{- $items := list -}}
{{- range splitList "\n---\n" $text -}}
{{- $object := fromYaml . -}}
{{- if $object.Error }}{{ fail (printf "manifests/%s: %s" $.file $object.Error) }}{{ end -}}
{{- $_ := set $object.metadata "namespace" $.root.Release.Namespace -}}
{{- $items = append $items $object -}}
{{- end -}}
{{- toJson (dict "items" $items) -}}
{{- end }}

{{/* Objects as a stream of documents. */}}
{{- define "soong.print" -}}
{{- range . }}
---
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The image, by its digest if there is one. */}}
{{- define "soong.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}
