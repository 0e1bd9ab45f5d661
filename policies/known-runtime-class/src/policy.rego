# A pod may name only a RuntimeClass that exists. Objects of the cluster arrive as `data.kubernetes`.
package known_runtime_class

# The document that the evaluator asks for.
main := {"response": response}

default response := {"allowed": true}

response := {
	"allowed": false,
	"status": {"message": message},
} if {
	wanted := input.request.object.spec.runtimeClassName
	not data.kubernetes.runtimeclasses[wanted]
	known := concat(", ", sort(object.keys(data.kubernetes.runtimeclasses)))
	message := sprintf("there is no RuntimeClass %s; there are: %s", [wanted, known])
}
