{{- define "trestle.name" -}}
{{- if contains "trestle" .Release.Name -}}{{ .Release.Name | trunc 48 | trimSuffix "-" }}{{- else -}}{{ printf "%s-trestle" .Release.Name | trunc 48 | trimSuffix "-" }}{{- end -}}
{{- end }}

{{- define "trestle.selector" -}}
app.kubernetes.io/name: trestle
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "trestle.labels" -}}
{{ include "trestle.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "trestle.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* What the server would refuse is said before it is installed. */ -}}
{{- define "trestle.check" -}}
{{- if not (has .Values.mode (list "server" "cluster")) }}{{ fail "mode is server or cluster" }}{{ end -}}
{{- if not .Values.insecure -}}
{{- if not .Values.tls.secretName }}{{ fail "others would reach a server without TLS: set tls.secretName, or insecure=true" }}{{ end -}}
{{- if not .Values.auth.enabled }}{{ fail "others would reach a server without login: set auth.enabled=true, or insecure=true" }}{{ end -}}
{{- if and (eq .Values.mode "cluster") (not .Values.cluster.secretName) }}{{ fail "the servers of a cluster need certificates for each other: set cluster.secretName, or insecure=true" }}{{ end -}}
{{- end -}}
{{- if eq .Values.mode "cluster" -}}
{{- if not .Values.cluster.etcd.endpoints }}{{ fail "set cluster.etcd.endpoints" }}{{ end -}}
{{- if not .Values.cluster.store }}{{ fail "set cluster.store" }}{{ end -}}
{{- end -}}
{{- /* The environment, which has these, would silently go before the file. */ -}}
{{- $own := list "data-dir" "listen" "http-listen" "insecure" "emulator" -}}
{{- if eq .Values.mode "cluster" }}{{ $own = concat $own (list "etcd" "cluster" "store" "name" "cluster-listen" "cluster-address") }}{{ end -}}
{{- range $name, $_ := .Values.settings -}}
{{- if has $name $own }}{{ fail (printf "settings.%s: the chart sets it, by other values" $name) }}{{ end -}}
{{- end -}}
{{- end }}

{{- define "trestle.auth" -}}
{{- if and .Values.auth.enabled .Values.tls.secretName }}on{{ else }}off{{ end -}}
{{- end }}

{{- /* Environment of what answers clients. */ -}}
{{- define "trestle.clientEnv" -}}
- {name: TRESTLE_LISTEN, value: "0.0.0.0:8086"}
- {name: TRESTLE_EMULATOR, value: {{ .Values.emulator | quote }}}
{{- if .Values.tls.secretName }}
- {name: TRESTLE_TLS_CERT, value: /secrets/tls/tls.crt}
- {name: TRESTLE_TLS_KEY, value: /secrets/tls/tls.key}
{{- end }}
{{- if eq (include "trestle.auth" .) "on" }}
- {name: TRESTLE_AUTH, value: "on"}
- name: TRESTLE_NAMES
  value: {{ concat (list (printf "%s.%s.svc" (include "trestle.name" .) .Release.Namespace) (printf "%s.%s.svc.cluster.local" (include "trestle.name" .) .Release.Namespace) (include "trestle.name" .)) .Values.serverNames | join "," }}
{{- if .Values.auth.tokenSecretName }}
- {name: TRESTLE_TOKEN_FILE, value: /secrets/tokens/tokens}
{{- end }}
{{- end }}
{{- end }}

{{- /* The settings are a file, which each role takes its own from. */ -}}
{{- define "trestle.settingsEnv" -}}
{{- if .Values.settings }}
- {name: TRESTLE_CONFIG, value: /etc/trestle/trestle.yaml}
{{- end }}
{{- end }}

{{- define "trestle.settingsMount" -}}
{{- if .Values.settings }}
- {name: settings, mountPath: /etc/trestle, readOnly: true}
{{- end }}
{{- end }}

{{- define "trestle.settingsVolume" -}}
{{- if .Values.settings }}
- {name: settings, configMap: {name: {{ include "trestle.name" . }}-settings}}
{{- end }}
{{- end }}

{{- /* Other settings make other pods: a process reads them when it starts. */ -}}
{{- define "trestle.podAnnotations" -}}
{{- $all := .Values.podAnnotations }}
{{- with .Values.settings }}{{ $all = merge (dict "checksum/settings" (toYaml . | sha256sum)) $all }}{{ end }}
{{- with $all }}
annotations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "trestle.commonEnv" -}}
{{- include "trestle.settingsEnv" . }}
- {name: TRESTLE_DATA_DIR, value: /data}
- {name: TRESTLE_HTTP_LISTEN, value: "0.0.0.0:8087"}
- {name: TRESTLE_INSECURE, value: {{ .Values.insecure | quote }}}
{{- if not (hasKey (.Values.settings | default dict) "log-format") }}
- {name: TRESTLE_LOG_FORMAT, value: json}
{{- end }}
{{- end }}

{{- define "trestle.clusterEnv" -}}
- {name: TRESTLE_ETCD, value: {{ join "," .Values.cluster.etcd.endpoints | quote }}}
- {name: TRESTLE_CLUSTER, value: {{ .Values.cluster.name | quote }}}
{{- if .Values.cluster.etcd.secretName }}
- {name: TRESTLE_ETCD_CA, value: /secrets/etcd/ca.crt}
{{- if .Values.cluster.etcd.clientCertificate }}
- {name: TRESTLE_ETCD_CERT, value: /secrets/etcd/tls.crt}
- {name: TRESTLE_ETCD_KEY, value: /secrets/etcd/tls.key}
{{- end }}
{{- end }}
{{- if .Values.cluster.secretName }}
- {name: TRESTLE_CLUSTER_CERT, value: /secrets/cluster/tls.crt}
- {name: TRESTLE_CLUSTER_KEY, value: /secrets/cluster/tls.key}
- {name: TRESTLE_CLUSTER_CA, value: /secrets/cluster/ca.crt}
{{- end }}
{{- end }}

{{- define "trestle.clientMounts" -}}
{{- if .Values.tls.secretName }}
- {name: tls, mountPath: /secrets/tls, readOnly: true}
{{- end }}
{{- if and .Values.auth.tokenSecretName (eq (include "trestle.auth" .) "on") }}
- {name: tokens, mountPath: /secrets/tokens, readOnly: true}
{{- end }}
{{- end }}

{{- define "trestle.clientVolumes" -}}
{{- if .Values.tls.secretName }}
- {name: tls, secret: {secretName: {{ .Values.tls.secretName | quote }}}}
{{- end }}
{{- if and .Values.auth.tokenSecretName (eq (include "trestle.auth" .) "on") }}
- {name: tokens, secret: {secretName: {{ .Values.auth.tokenSecretName | quote }}, defaultMode: 0400}}
{{- end }}
{{- end }}

{{- define "trestle.clusterMounts" -}}
{{- if .Values.cluster.etcd.secretName }}
- {name: etcd, mountPath: /secrets/etcd, readOnly: true}
{{- end }}
{{- if .Values.cluster.secretName }}
- {name: cluster, mountPath: /secrets/cluster, readOnly: true}
{{- end }}
{{- end }}

{{- define "trestle.clusterVolumes" -}}
{{- if .Values.cluster.etcd.secretName }}
- {name: etcd, secret: {secretName: {{ .Values.cluster.etcd.secretName | quote }}}}
{{- end }}
{{- if .Values.cluster.secretName }}
- {name: cluster, secret: {secretName: {{ .Values.cluster.secretName | quote }}}}
{{- end }}
{{- end }}

{{- define "trestle.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "trestle.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "trestle.placement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Probes; the scheme is what http-listen speaks where others reach it. */ -}}
{{- define "trestle.probes" -}}
readinessProbe:
  httpGet: {path: /readyz, port: http, scheme: {{ .scheme }}}
  periodSeconds: 5
  timeoutSeconds: 3
livenessProbe:
  httpGet: {path: /livez, port: http, scheme: {{ .scheme }}}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end }}

{{- define "trestle.scheme" -}}
{{- if .Values.tls.secretName }}HTTPS{{ else }}HTTP{{ end -}}
{{- end }}

{{- /* A master has no certificate for clients: without insecure it tells its
health and its metrics to its own pod only. */ -}}
{{- define "trestle.masterEnv" -}}
{{- include "trestle.settingsEnv" . }}
- {name: TRESTLE_DATA_DIR, value: /data}
- {name: TRESTLE_HTTP_LISTEN, value: {{ ternary "0.0.0.0:8087" "127.0.0.1:8087" .Values.insecure | quote }}}
- {name: TRESTLE_INSECURE, value: {{ .Values.insecure | quote }}}
{{- if not (hasKey (.Values.settings | default dict) "log-format") }}
- {name: TRESTLE_LOG_FORMAT, value: json}
{{- end }}
{{- end }}
