# Chooses the clusters that an object is sent to: those whose labels match the selector in an annotation. The answer has
# the placement form: errors deny, annotations are merged into the object's.
package cluster_placement

main := {"errors": errors, "annotations": annotations}

default selector := ""

selector := input.request.object.metadata.annotations["placement.example.com/selector"]

# `key=value` pairs, joined by commas.
wanted := {pair[0]: pair[1] |
	some term in split(selector, ",")
	pair := split(term, "=")
	count(pair) == 2
}

malformed if {
	some term in split(selector, ",")
	count(split(term, "=")) != 2
}

chosen := sort([name |
	some name, cluster in data.kubernetes.clusters
	every key, value in wanted {
		cluster.metadata.labels[key] == value
	}
])

errors contains "annotation placement.example.com/selector must hold key=value pairs, joined by commas" if {
	selector != ""
	malformed
}

errors contains message if {
	selector != ""
	not malformed
	count(chosen) == 0
	message := sprintf("no Cluster has the labels %s", [selector])
}

default annotations := {}

annotations := {"placement.example.com/clusters": concat(",", chosen)} if {
	selector != ""
	count(errors) == 0
}
