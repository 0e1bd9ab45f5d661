# Every object must say who owns it, by an annotation. Settings arrive as `data`.
package require_owner

# The document that the evaluator asks for.
main := {"response": response}

default response := {"allowed": true}

response := {
	"allowed": false,
	"status": {"message": concat("; ", sort(problems))},
} if {
	count(problems) > 0
}

default annotation := "example.com/owner"

annotation := data.annotation

default pattern := "^.+$"

pattern := data.pattern

kind := input.request.kind.kind

# An object that is being deleted must be able to lose its finalizers. Only the stored object can tell: a
# user may write a deletionTimestamp into a new one.
leaving if input.request.oldObject.metadata.deletionTimestamp

judged if {
	input.request.operation in {"CREATE", "UPDATE"}
	object.get(input.request, "subResource", "") == ""
	not leaving
}

default metadata := {}

metadata := input.request.object.metadata

owner := metadata.annotations[annotation]

problems contains message if {
	judged
	not owner
	message := sprintf("%s has no annotation %s: add it and name the team that answers for this object", [kind, annotation])
}

problems contains message if {
	judged
	not regex.match(pattern, owner)
	message := sprintf("annotation %s is \"%s\", which does not match %s", [annotation, owner, pattern])
}
