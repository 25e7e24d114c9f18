{{- /* Labels of every object. Call with (list $ "component"). */ -}}
{{- define "tenure.labels" -}}
{{- $ := index . 0 -}}
{{ include "tenure.selector" . }}
app.kubernetes.io/version: {{ $.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: tenure
app.kubernetes.io/managed-by: {{ $.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $.Chart.Name $.Chart.Version }}
{{- with $.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* What Services, budgets and workloads select. Never changes: a Deployment's selector cannot. */ -}}
{{- define "tenure.selector" -}}
app.kubernetes.io/name: tenure
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "tenure.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- /* The scheduler of the cluster's own version; vendors' suffixes (v1.34.2-gke.100, v1.34.2+k3s1) have no image. */ -}}
{{- define "tenure.schedulerImage" -}}
{{- $image := .Values.scheduler.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default (regexFind "^v[0-9]+\\.[0-9]+\\.[0-9]+" .Capabilities.KubeVersion.Version) }}
{{- end -}}
{{- end -}}

{{- /* The user name of the server, also of the kube-scheduler beside it: the only one that writes decision keys. */ -}}
{{- define "tenure.account" -}}
system:serviceaccount:{{ .Release.Namespace }}:tenure-server
{{- end -}}

{{- /* True where the kube-scheduler runs beside the server. */ -}}
{{- define "tenure.schedules" -}}
{{- if and .Values.scheduler.enabled .Values.pool.enabled }}true{{ end -}}
{{- end -}}

{{- /* True where a kube-scheduler of somebody else's calls the extender, which then demands client certificates. */ -}}
{{- define "tenure.extenderOutside" -}}
{{- $http := (include "tenure.settings" . | fromYaml).http -}}
{{- if and .Values.pool.enabled (not .Values.scheduler.enabled) (not (has $http.extender_host (list "127.0.0.1" "::1" "localhost"))) }}true{{ end -}}
{{- end -}}

{{- /* True where the agents serve region volumes or keep region files. */ -}}
{{- define "tenure.keepsRegions" -}}
{{- if ne (include "tenure.settings" . | fromYaml).regions.backend "off" }}true{{ end -}}
{{- end -}}

{{- /* The priority class of a workload, or nothing. Call with (list $ "server"). */ -}}
{{- define "tenure.priorityClass" -}}
{{- $ := index . 0 -}}
{{- $component := index . 1 -}}
{{- $named := (index $.Values $component).priorityClassName -}}
{{- if or $named $.Values.priorityClasses.create -}}
{{ $named | default (printf "tenure-%s" $component) }}
{{- end -}}
{{- end -}}

{{- /* Meshes stay out of our pods: a proxy in front of the webhook breaks every call of the API server. */ -}}
{{- define "tenure.noMeshLabels" -}}
sidecar.istio.io/inject: "false"
istio.io/dataplane-mode: none
kuma.io/sidecar-injection: disabled
{{- end -}}
{{- define "tenure.noMeshAnnotations" -}}
sidecar.istio.io/inject: "false"
linkerd.io/inject: disabled
kuma.io/sidecar-injection: disabled
consul.hashicorp.com/connect-inject: "false"
{{- end -}}

{{- /* What Pod Security `restricted` demands, and a root that nobody writes to. */ -}}
{{- define "tenure.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}
{{- define "tenure.restrictedPod" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- /*
The settings tree of the program, as YAML: what the values say, overlaid by .Values.settings. Every template that needs
a name, a port or a mode reads it here, so that program, webhook, scheduler and rights always mean the same. Fields
that the chart does not set have the program's defaults; those that templates need are written out, and a test compares
them with service/settings.py.
*/ -}}
{{- define "tenure.settings" -}}
{{- $v := .Values -}}
{{- $own := include "tenure.ownSettings" . | fromYaml -}}
{{- $all := mergeOverwrite $own (deepCopy ($v.settings | default dict)) -}}
{{- $accounts := prepend ($all.webhook.decision_accounts | default list) (include "tenure.account" .) | uniq -}}
{{- $_ := set $all.webhook "decision_accounts" $accounts -}}
{{ toYaml $all }}
{{- end -}}

{{- define "tenure.ownSettings" -}}
{{- $v := .Values -}}
kube:
  namespace: {{ .Release.Namespace }}
http:
  webhook_port: 9443
  # With the node's network the loopback is the node's: whoever calls the extender must show a certificate.
  extender_host: {{ ternary "0.0.0.0" "127.0.0.1" $v.server.hostNetwork }}
  extender_port: 9444
  ops_port: 8080
  drain_s: 12
webhook:
  configuration_name: tenure
  decision_accounts: {{ toJson $v.webhook.decisionAccounts }}
lease:
  name: tenure
certs:
  mode: {{ ternary "self" "files" (eq $v.certificates.mode "self") }}
  secret_name: tenure-ca
  service: tenure-webhook
  directory: /etc/tenure/tls
  {{- if and $v.server.hostNetwork (eq $v.certificates.mode "self") }}
  client_secret: {{ $v.certificates.clientSecretName }}
  {{- end }}
pool:
  placement: {{ $v.pool.placement }}
  policy: {{ $v.pool.policy }}
  resource_count_name: {{ ternary $v.pool.resources.count "" $v.pool.enabled | quote }}
  resource_memory_name: {{ ternary $v.pool.resources.memory "" $v.pool.enabled | quote }}
regions:
  backend: {{ quote $v.regions.backend }}
  root: {{ $v.regions.root }}
  kubelet_root: {{ $v.regions.kubeletRoot }}
  resources: {{ toJson $v.regions.resources }}
  unpublish_only: {{ $v.regions.unpublishOnly }}
occupancy:
  # The host's, as the agents' pods mount them.
  dev: /host/dev
  sys: /host/sys
  profiles:
    group: airm.ai-computing.io
    plural: acceleratorprofiles
devices:
  claim_template_name: {{ quote $v.devices.claimTemplateName }}
  npu: {{ include "tenure.deviceKind" $v.devices.npu }}
  rdma: {{ include "tenure.deviceKind" $v.devices.rdma | fromJson | merge (dict "enabled" $v.devices.rdma.enabled) | toJson }}
{{- end -}}

{{- define "tenure.deviceKind" -}}
{{- if eq .mode "devicePlugin" -}}
{{ dict "mode" .mode "resource_name" .resourceName "count" .count | toJson }}
{{- else -}}
{{ dict "mode" "dra" | toJson }}
{{- end -}}
{{- end -}}

{{- /* What the pods of all hooks have in common. */ -}}
{{- define "tenure.hookPod" -}}
restartPolicy: Never
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext: {{- include "tenure.restrictedPod" . | nindent 2 }}
{{- with .Values.server.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.server.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
{{- define "tenure.hookContainer" -}}
image: {{ include "tenure.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext: {{- include "tenure.restricted" . | nindent 2 }}
terminationMessagePolicy: FallbackToLogsOnError
resources:
  requests: {cpu: 20m, memory: 96Mi}
  limits: {memory: 512Mi}
{{- end -}}

{{- /* After the release is deleted, in the order of the given weight, and gone when it has succeeded. */ -}}
{{- define "tenure.afterDelete" -}}
helm.sh/hook: post-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{- define "tenure.forTest" -}}
helm.sh/hook: test
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}
