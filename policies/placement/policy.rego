# Where a workload runs is decided by its tenant: the policy writes the placement as annotations, and refuses workloads
# of tenants that it does not know. The settings map tenants to placements.
# assent.mutating
package placement

main := {"errors": errors, "annotations": annotations}

default tenant := ""

tenant := input.request.object.metadata.labels.tenant

placements := object.get(input.parameters, "placements", {})

errors contains "the label tenant is missing" if tenant == ""

errors contains msg if {
	tenant != ""
	not placements[tenant]
	msg := sprintf("there is no placement for the tenant %s", [tenant])
}

default annotations := {}

annotations := {
	"placement.example.com/region": placements[tenant].region,
	"placement.example.com/pool": object.get(placements[tenant], "pool", "shared"),
}
