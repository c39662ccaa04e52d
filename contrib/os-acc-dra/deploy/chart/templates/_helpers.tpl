{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{- define "labels" -}}
app.kubernetes.io/name: os-acc-dra
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* The directories of the host that the driver uses, at the same paths.
HostToContainer: what the host unmounts is unmounted here too. */}}
{{- define "directories" -}}
{{- $dirs := list
  (dict "path" "/dev" "type" "Directory")
  (dict "path" "/sys" "type" "Directory")
  (dict "path" "/sys/fs/cgroup" "type" "Directory" "readOnly" true)
  (dict "path" "/lib/modules" "type" "Directory" "readOnly" true)
  (dict "path" "/run/udev" "type" "DirectoryOrCreate" "readOnly" true)
  (dict "path" "/run/libvirt" "type" "DirectoryOrCreate" "readOnly" true)
  (dict "path" "/run/os-acc" "type" "DirectoryOrCreate")
  (dict "path" "/var/lib/os-acc" "type" "DirectoryOrCreate")
  (dict "path" "/var/lib/os-acc-root" "type" "DirectoryOrCreate")
  (dict "path" "/etc/os-acc/device_spec.d" "type" "DirectoryOrCreate")
  (dict "path" "/etc/cdi" "type" "DirectoryOrCreate" "readOnly" true)
  (dict "path" .Values.cdiSpecDir "type" "DirectoryOrCreate")
  (dict "path" .Values.kubeletPath "type" "Directory")
}}
{{- range .Values.hostFiles }}
{{- $dirs = append $dirs (dict "path" . "type" "File" "readOnly" true) }}
{{- end }}
{{- toJson $dirs }}
{{- end }}
