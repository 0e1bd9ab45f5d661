# Denies objects without a label. The settings of the manifest are input.parameters.
package {{ident}}

deny contains msg if {
	value := object.get(input.request.object, ["metadata", "labels", input.parameters.label], "")
	value == ""
	msg := sprintf("the label %s is missing", [input.parameters.label])
}
