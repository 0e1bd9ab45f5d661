# The value of a label must be unique among the objects of the same kind. Written as for Gatekeeper: objects of the
# cluster arrive as `data.inventory`.
package unique_label

violation contains {"msg": message, "details": {"label": label, "value": value}} if {
	value := input.review.object.metadata.labels[label]
	some other in others
	other.metadata.labels[label] == value
	not same(other)
	message := sprintf("label %s has the value %s already on %s", [label, value, place(other)])
}

label := input.parameters.label

group_version := concat("/", [part | some part in [input.review.kind.group, input.review.kind.version]; part != ""])

others contains other if some other in data.inventory.cluster[group_version][input.review.kind.kind]

others contains other if {
	some namespace
	some other in data.inventory.namespace[namespace][group_version][input.review.kind.kind]
}

# An update finds the object that it changes.
same(other) if {
	other.metadata.name == input.review.object.metadata.name
	object.get(other.metadata, "namespace", "") == object.get(input.review.object.metadata, "namespace", "")
}

place(other) := sprintf("%s/%s", [other.metadata.namespace, other.metadata.name])

place(other) := other.metadata.name if not other.metadata.namespace
