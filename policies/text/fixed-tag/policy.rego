# Images must have a tag other than latest, or a digest.
package fixed_tag

deny contains msg if {
	some container in input.request.object.spec.containers
	not fixed(container.image)
	msg := sprintf("container %s uses the image %s, which may change", [container.name, container.image])
}

fixed(image) if contains(image, "@sha256:")

fixed(image) if {
	last := regex.replace(image, `^.*/`, "")
	contains(last, ":")
	not endswith(last, ":latest")
}
