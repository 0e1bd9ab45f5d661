# Images must come from named repositories. Written as for Gatekeeper: `parameters` are the settings.
package allowed_repos

violation contains {"msg": message, "details": {"image": image, "field": field}} if {
	not leaving
	some list in ["containers", "initContainers", "ephemeralContainers"]
	some i, container in pod_spec[list]

	# With defaults, since a missing field would make the rule undefined, and undefined allows.
	image := object.get(container, "image", "")
	name := object.get(container, "name", "")
	not allowed(image)
	field := sprintf("%s[%d]", [list, i])
	message := sprintf("container %s (%s) uses image %s: allowed are %s", [name, field, image, concat(", ", repos)])
}

# An object that is being deleted must be able to lose its finalizers. Only the stored object can tell: a
# user may write a deletionTimestamp into a new one.
leaving if input.review.oldObject.metadata.deletionTimestamp

repos := object.get(input.parameters, "repos", [])

# A repository ends where the next path element begins. Without that rule
# `registry.example.com` would allow `registry.example.com.evil.test/x`.
allowed(image) if {
	some repo in repos
	startswith(image, concat("", [trim_suffix(repo, "/"), "/"]))
}

# Or where its tag or digest begins; what has a slash after the colon is a port, and so another registry.
allowed(image) if {
	some repo in repos
	some separator in [":", "@"]
	start := concat("", [trim_suffix(repo, "/"), separator])
	startswith(image, start)
	not contains(trim_prefix(image, start), "/")
}

allowed(image) if {
	some repo in repos
	image == trim_suffix(repo, "/")
}

object_spec := input.review.object.spec

pod_spec := object_spec if {
	input.review.kind.group == ""
	input.review.kind.kind == "Pod"
}

pod_spec := object_spec.template.spec if {
	input.review.kind.group in {"apps", "batch"}
	input.review.kind.kind in {"DaemonSet", "Deployment", "ReplicaSet", "StatefulSet", "Job"}
}

pod_spec := object_spec.jobTemplate.spec.template.spec if {
	input.review.kind.group == "batch"
	input.review.kind.kind == "CronJob"
}
