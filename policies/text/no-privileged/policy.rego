# Denies pods with containers that run privileged.
package no_privileged

deny contains msg if {
	some list in ["containers", "initContainers", "ephemeralContainers"]
	some container in input.request.object.spec[list]
	container.securityContext.privileged
	msg := sprintf("container %s must not be privileged", [container.name])
}
