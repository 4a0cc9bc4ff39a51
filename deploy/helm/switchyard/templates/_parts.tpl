{{- define "yard.labels" -}}
app.kubernetes.io/name: switchyard
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .name }}
{{- end }}

{{- define "yard.metadata" -}}
name: {{ .root.Release.Name }}-{{ .name }}
labels:
  {{- include "yard.labels" . | nindent 2 }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end }}

{{- define "yard.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "yard.claim" -}}
{{ .Values.persistence.existingClaim | default (printf "%s-blobs" .Release.Name) }}
{{- end }}

{{- /* What all processes of the control plane are told. A password goes by reference to the Secret. */}}
{{- define "yard.environment" -}}
- {name: DATABASE_URL, value: "postgresql://{{ .Values.database.user }}@{{ .Values.database.host }}:{{ .Values.database.port }}/{{ .Values.database.name }}"}
- name: PGPASSWORD
  valueFrom: {secretKeyRef: {name: {{ .Values.existingSecret }}, key: database.password}}
- {name: REDIS_URL, value: "{{ ternary "rediss" "redis" .Values.redis.tls }}://{{ .Values.redis.host }}:{{ .Values.redis.port }}/{{ .Values.redis.number }}"}
{{- if .Values.redis.password }}
- {name: REDIS_PASSWORD_FILE, value: /run/yard/redis.password}
{{- end }}
- {name: YARD_SECRET_KEY_FILE, value: /run/yard/django.key}
- {name: YARD_SECRETS_KEY_FILE, value: /run/yard/secrets.keys}
- {name: YARD_HOME, value: /var/lib/switchyard}
- {name: YARD_URL, value: {{ .Values.url | quote }}}
- {name: YARD_AGENTS_URL, value: {{ .Values.agentsUrl | quote }}}
- {name: YARD_SESSIONS_URL, value: {{ .Values.sessionsUrl | quote }}}
- {name: YARD_ALLOWED_HOSTS, value: "127.0.0.1,{{ .Release.Name }}-gateway,{{ .Release.Name }}-web"}
- {name: YARD_BEHIND_PROXY, value: {{ ternary "1" "" (hasPrefix "https://" .Values.url) | quote }}}
- {name: YARD_CLUSTER, value: {{ .Values.cluster | quote }}}
- {name: YARD_CLUSTERS, value: {{ .Values.clusters | quote }}}
- {name: YARD_LOG_LEVEL, value: {{ .Values.logLevel }}}
{{- range $name, $value := .Values.environment }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{- define "yard.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "yard.container" -}}
image: {{ include "yard.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  - {name: keys, mountPath: /run/yard, readOnly: true}
  - {name: blobs, mountPath: /var/lib/switchyard/blobs, subPath: blobs}
  - {name: blobs, mountPath: /var/lib/switchyard/decisions, subPath: decisions}
{{- end }}

{{- define "yard.volumes" -}}
- {name: tmp, emptyDir: {sizeLimit: 1Gi}}
- name: keys
  secret: {secretName: {{ .Values.existingSecret }}, defaultMode: 0440}
{{- end }}

{{- /* A Deployment of one process: root, name, replicas, resources, command, environment, port or a file to watch. */}}
{{- define "yard.deployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "yard.metadata" . | nindent 2 }}
spec:
  replicas: {{ .replicas }}
  {{- if .alone }}
  strategy: {type: Recreate}
  {{- end }}
  selector:
    matchLabels:
      {{- include "yard.labels" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "yard.labels" . | nindent 8 }}
    spec:
      {{- include "yard.pod" .root | nindent 6 }}
      terminationGracePeriodSeconds: 60
      {{- if not .alone }}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {{- include "yard.labels" . | nindent 14 }}
      {{- end }}
      containers:
        - name: {{ .name }}
          {{- include "yard.container" .root | nindent 10 }}
          command: {{ toJson .command }}
          env:
            {{- include "yard.environment" .root | nindent 12 }}
            {{- range $name, $value := .environment }}
            - {name: {{ $name }}, value: {{ $value | quote }}}
            {{- end }}
          resources: {{ toJson .resources }}
          {{- if .port }}
          ports: [{name: http, containerPort: {{ .port }}}]
          # Its own name is answered, a pod's address is not.
          startupProbe:
            httpGet: {path: /healthz, port: http, httpHeaders: [{name: Host, value: 127.0.0.1}]}
            periodSeconds: 2
            failureThreshold: 60
          livenessProbe:
            httpGet: {path: /healthz, port: http, httpHeaders: [{name: Host, value: 127.0.0.1}]}
            periodSeconds: 10
            timeoutSeconds: 6
            failureThreshold: 6
          readinessProbe:
            httpGet: {path: /readyz, port: http, httpHeaders: [{name: Host, value: 127.0.0.1}]}
            periodSeconds: 5
            timeoutSeconds: 6
          {{- else }}
          startupProbe:
            exec: {command: {{ toJson .alive }}}
            periodSeconds: 5
            timeoutSeconds: 10
            failureThreshold: 36
          livenessProbe:
            exec: {command: {{ toJson .alive }}}
            periodSeconds: 15
            timeoutSeconds: 10
            failureThreshold: 3
          {{- end }}
      volumes:
        {{- include "yard.volumes" .root | nindent 8 }}
        - name: blobs
          persistentVolumeClaim: {claimName: {{ include "yard.claim" .root }}}
{{- end }}
