# Every object must name its owner. The settings choose the annotation.
package require_owner

annotation := object.get(input.parameters, "annotation", "example.com/owner")

owner := input.request.object.metadata.annotations[annotation]

deny contains msg if {
	not owner
	msg := sprintf("annotation %s is missing: name the team that answers for this object", [annotation])
}

deny contains msg if {
	owner
	not regex.match(`^team-[a-z\d-]+$`, owner)
	msg := sprintf("annotation %s must look like team-checkout", [annotation])
}
