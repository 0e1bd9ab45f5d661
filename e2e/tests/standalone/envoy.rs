//! Requests through a real Envoy, decided by real evaluators.

mod decisions;
mod edits;
mod failures;
mod hostile;

use assent_e2e::{
    Options, Up,
    envoy::{Authorizer, Envoy, rego},
    up::free_address,
};

/// What the policy of most tests decides, by the first segment of the path.
const POLICY: &str = r#"package t

decision := true if input.parsed_path[0] == "allow"

decision := false if input.parsed_path[0] == "refuse"

decision := {
	"allowed": false,
	"http_status": 429,
	"body": "slow down\n",
	"headers": {"retry-after": "7", "x-why": ["one", "two"]},
	"dynamic_metadata": {"why": "busy"},
} if input.parsed_path[0] == "deny"

decision := {
	"allowed": true,
	"headers": {"x-user": "alice", "x-many": ["1", "2"]},
	"request_headers_to_remove": ["x-secret"],
	"response_headers_to_add": {"x-answer": "yes"},
	"query_parameters_to_set": {"set": "new"},
	"query_parameters_to_remove": ["remove"],
	"dynamic_metadata": {"user": {"name": "alice"}},
} if input.parsed_path[0] == "change"

decision := {"allowed": ok, "body": body} if {
	input.parsed_path[0] == "body"
	ok := object.get(input, ["parsed_body", "ok"], false)
	body := json.marshal([input.parsed_body, input.truncated_body])
}

decision := {"allowed": true, "headers": {"host": "elsewhere"}} if input.parsed_path[0] == "steal"
"#;

fn policy(name: &str, module: &str, lines: &str) -> String {
    format!(
        "apiVersion: policies.assent.dev/v1alpha1\nkind: ClusterRequestPolicy\nmetadata:\n  name: {name}\nspec:\n  module: file://{module}\n{lines}"
    )
}

/// `assent up` with the policy above, and an Envoy that asks it.
async fn start(more: Options) -> (Up, Envoy) {
    let authz = free_address();
    let options = more
        .args(&["--authz", &authz.to_string()])
        .file("t.wasm", rego(POLICY, "t/decision"))
        .file("t.yaml", policy("t", "t.wasm", ""));
    let up = Up::start(options).await;
    up.wait_enforced("t", 1).await;
    let envoy = Envoy::start(&Authorizer::Tcp(authz)).await;
    (up, envoy)
}
