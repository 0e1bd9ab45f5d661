{{- define "assent.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Name of what the chart makes. Shorter than a label, so that suffixes have room. */}}
{{- define "assent.fullname" -}}
{{- $name := include "assent.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Cluster-scoped names: two releases in two namespaces must not share one. */}}
{{- define "assent.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "assent.fullname" .) -}}
{{- end -}}

{{- define "assent.selector" -}}
app.kubernetes.io/name: {{ include "assent.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: control-plane
{{- end -}}

{{/* What runs, as a label's value: a digest is none. */}}
{{- define "assent.version" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{- ternary .Chart.AppVersion $tag (contains ":" $tag) | trunc 63 | trimAll "-_." -}}
{{- end -}}

{{- define "assent.labels" -}}
app.kubernetes.io/name: {{ include "assent.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ include "assent.version" . | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: assent
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- define "assent.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "assent.fullname" .) -}}
{{- else -}}
{{- required "serviceAccount.name is required if serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* User names of the control plane and of the hooks. */}}
{{- define "assent.serviceAccountUsers" -}}
{{- $users := list -}}
{{- $name := include "assent.fullname" . -}}
{{- range list (include "assent.serviceAccountName" .) (printf "%s-apply-crds" $name) (printf "%s-cleanup" $name) -}}
{{- $users = append $users (printf "system:serviceaccount:%s:%s" $.Release.Namespace .) -}}
{{- end -}}
{{- join "," $users -}}
{{- end -}}

{{/* include "assent.image" (list . "name") */}}
{{- define "assent.image" -}}
{{- $top := index . 0 -}}
{{- $name := index . 1 -}}
{{- $tag := $top.Values.image.tag | default $top.Chart.AppVersion -}}
{{- $registry := $top.Values.image.registry | trimSuffix "/" -}}
{{- /* A tag may be a digest. */ -}}
{{- $separator := ternary "@" ":" (hasPrefix "sha256:" $tag) -}}
{{- if $registry }}{{ $registry }}/{{ end }}{{ $name }}{{ $separator }}{{ $tag }}
{{- end -}}

{{- define "assent.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Pod Security Standards "restricted". */}}
{{- define "assent.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "assent.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Variables that name the proxy, as a JSON array, but for those of a list of variables: include "assent.proxy" (list . $env) */}}
{{- define "assent.proxy" -}}
{{- $top := index . 0 -}}
{{- $given := list -}}
{{- range index . 1 }}{{ $given = append $given .name }}{{ end -}}
{{- $env := list -}}
{{- range list (list "HTTPS_PROXY" $top.Values.proxy.https) (list "HTTP_PROXY" $top.Values.proxy.http) (list "NO_PROXY" $top.Values.proxy.noProxy) -}}
{{- if and (index . 1) (not (has (index . 0) $given)) -}}
{{- $env = append $env (dict "name" (index . 0) "value" (index . 1)) -}}
{{- end -}}
{{- end -}}
{{- toJson $env -}}
{{- end -}}

{{/* Variables of the default PolicyServer, as a JSON array: those of its spec, and what other values make of them. */}}
{{- define "assent.policyServerEnv" -}}
{{- $env := .Values.policyServer.spec.env | default list -}}
{{- $given := list -}}
{{- range $env }}{{ $given = append $given .name }}{{ end -}}
{{- $more := include "assent.proxy" (list . $env) | fromJsonArray -}}
{{- with .Values.policyServer.decisionLog -}}
{{- if and (ne .target "stdout") (not (has "ASSENT_DECISION_LOG" $given)) -}}
{{- $more = append $more (dict "name" "ASSENT_DECISION_LOG" "value" .target) -}}
{{- end -}}
{{- if and (ne (int .allows) 100) (not (has "ASSENT_DECISION_LOG_ALLOWS" $given)) -}}
{{- $more = append $more (dict "name" "ASSENT_DECISION_LOG_ALLOWS" "value" (int .allows | toString)) -}}
{{- end -}}
{{- end -}}
{{- toJson (concat $env $more) -}}
{{- end -}}

{{/* The manifest that the control plane makes the default PolicyServer from. */}}
{{- define "assent.policyServer" -}}
{{- $spec := dict "replicas" (int .Values.policyServer.replicas) -}}
{{- with .Values.policyServer.resources }}{{ $_ := set $spec "resources" . }}{{ end -}}
{{- $priority := .Values.policyServer.priorityClassName -}}
{{- if and .Values.priorityClass.create (not $priority) }}{{ $priority = include "assent.clusterName" . }}{{ end -}}
{{- with $priority }}{{ $_ := set $spec "priorityClassName" . }}{{ end -}}
{{- with .Values.injection.allowedNamespaces }}{{ $_ := set $spec "injection" (dict "allowedNamespaces" .) }}{{ end -}}
{{- with .Values.policyServer.nodeSelector }}{{ $_ := set $spec "nodeSelector" . }}{{ end -}}
{{- with .Values.policyServer.topologySpreadConstraints }}{{ $_ := set $spec "topologySpreadConstraints" . }}{{ end -}}
{{- $secrets := list -}}
{{- range .Values.image.pullSecrets }}{{ $secrets = append $secrets (dict "name" .) }}{{ end -}}
{{- with $secrets }}{{ $_ := set $spec "imagePullSecrets" . }}{{ end -}}
{{- $spec = mergeOverwrite $spec (deepCopy .Values.policyServer.spec) -}}
{{- with include "assent.policyServerEnv" . | fromJsonArray }}{{ $_ := set $spec "env" . }}{{ end -}}
apiVersion: policies.assent.dev/v1alpha1
kind: PolicyServer
metadata:
  name: default
spec:
  {{- toYaml $spec | nindent 2 }}
{{- end -}}

{{- define "assent.crdNames" -}}
- admissionpolicies.policies.assent.dev
- clusteradmissionpolicies.policies.assent.dev
- policyrevisions.policies.assent.dev
- policyservers.policies.assent.dev
{{- end -}}

{{/* Annotations of a hook's objects: include "assent.hook" (list "pre-upgrade" "-10") */}}
{{- define "assent.hook" -}}
helm.sh/hook: {{ index . 0 }}
helm.sh/hook-weight: {{ index . 1 | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{/* ServiceAccount and roles of a hook: include "assent.hookAccess" (dict "top" . "name" … "hook" … "clusterRules" … "rules" …) */}}
{{- define "assent.hookAccess" -}}
{{- $top := .top -}}
{{- $clusterName := printf "%s-%s" $top.Release.Namespace .name -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ .name }}
  namespace: {{ $top.Release.Namespace }}
  labels:
    {{- include "assent.labels" $top | nindent 4 }}
  annotations:
    {{- include "assent.hook" (list .hook "-20") | nindent 4 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ $clusterName }}
  labels:
    {{- include "assent.labels" $top | nindent 4 }}
  annotations:
    {{- include "assent.hook" (list .hook "-20") | nindent 4 }}
rules:
  {{- .clusterRules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $clusterName }}
  labels:
    {{- include "assent.labels" $top | nindent 4 }}
  annotations:
    {{- include "assent.hook" (list .hook "-10") | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $clusterName }}
subjects:
  - kind: ServiceAccount
    name: {{ .name }}
    namespace: {{ $top.Release.Namespace }}
{{- with .rules }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $.name }}
  namespace: {{ $top.Release.Namespace }}
  labels:
    {{- include "assent.labels" $top | nindent 4 }}
  annotations:
    {{- include "assent.hook" (list $.hook "-20") | nindent 4 }}
rules:
  {{- . | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $.name }}
  namespace: {{ $top.Release.Namespace }}
  labels:
    {{- include "assent.labels" $top | nindent 4 }}
  annotations:
    {{- include "assent.hook" (list $.hook "-10") | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ $.name }}
subjects:
  - kind: ServiceAccount
    name: {{ $.name }}
    namespace: {{ $top.Release.Namespace }}
{{- end }}
{{- end -}}

{{/* A hook's Job: include "assent.hookJob" (dict "top" . "name" … "hook" … "args" (list …)) */}}
{{- define "assent.hookJob" -}}
{{- $top := .top -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ .name }}
  namespace: {{ $top.Release.Namespace }}
  labels:
    {{- include "assent.labels" $top | nindent 4 }}
  annotations:
    {{- include "assent.hook" (list .hook "0") | nindent 4 }}
spec:
  backoffLimit: 3
  activeDeadlineSeconds: {{ $top.Values.hooks.activeDeadlineSeconds }}
  template:
    metadata:
      labels:
        {{- include "assent.labels" $top | nindent 8 }}
        app.kubernetes.io/component: hook
    spec:
      serviceAccountName: {{ .name }}
      restartPolicy: Never
      {{- with include "assent.pullSecrets" $top }}
      {{- . | trim | nindent 6 }}
      {{- end }}
      securityContext:
        {{- include "assent.podSecurityContext" $top | nindent 8 }}
      containers:
        - name: hook
          image: {{ include "assent.image" (list $top $top.Values.image.controlPlane) }}
          imagePullPolicy: {{ $top.Values.image.pullPolicy }}
          args:
            {{- toYaml .args | nindent 12 }}
          resources:
            requests:
              cpu: 10m
              memory: 32Mi
            limits:
              memory: 256Mi
          securityContext:
            {{- include "assent.securityContext" $top | nindent 12 }}
      {{- with $top.Values.controlPlane.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $top.Values.controlPlane.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
{{- end -}}

{{- /* Secrets with registry credentials, comma-separated: those that are listed, and that of the default PolicyServer. */}}
{{- define "assent.registrySecrets" -}}
{{- $names := .Values.registrySecrets }}
{{- with .Values.policyServer.spec.imagePullSecret }}
{{- $names = append $names . }}
{{- end }}
{{- join ", " (uniq $names) }}
{{- end }}
