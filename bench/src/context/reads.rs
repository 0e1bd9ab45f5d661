//! What it costs a policy to read objects (X1, X2).

use std::{fs, path::Path, sync::Arc, time::Instant};

use anyhow::Context as _;
use assent_context::Collection;
use assent_core::PolicyKey;
use assent_evaluator::context::{ContextData, FixedReads, LiveReads, Subject, with_objects};
use assent_wasm::{Abi, Engine, EngineConfig, HostServices, Policy, PolicySpec, Review};
use serde_json::{json, value::RawValue};

use super::objects::{self, API_VERSION, KIND};
use crate::{
    machine,
    report::{Runs, Unit, ms, us},
};

/// X1: a Gatekeeper policy over all objects.
pub(super) fn rego(
    runs: &mut Runs,
    policies: &Path,
    count: usize,
    evaluations: usize,
) -> anyhow::Result<()> {
    let path = policies.join("unique-label/policy.wasm");
    let module = fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
    let collection = objects::collection(count, &[])?;
    let bytes = collection.totals().bytes;
    let settings = r#"{"label":"example.com/route"}"#;
    let policy = policy(&module, Abi::Gatekeeper, settings, collection)?;
    let request = json!({
        "uid": "u", "operation": "CREATE", "namespace": "team-0", "name": "new",
        "kind": {"group": "rbac.authorization.k8s.io", "version": "v1", "kind": KIND},
        "object": objects::role_binding(usize::MAX, "deployer"),
    });
    // Each takes long: fewer give the same median.
    let cost = evaluate(&policy, &request, (evaluations / 100).max(5))?;
    let (now, peak) = machine::memory(std::process::id())?;
    runs.row(
        format!("X1: Rego over {count} objects"),
        [
            ("CPU per review", Unit::Milliseconds, cost / 1_000.0),
            ("objects", Unit::Megabytes, bytes as f64 / 1e6),
            ("memory after", Unit::Megabytes, now as f64 / 1e6),
            ("memory at most", Unit::Megabytes, peak as f64 / 1e6),
        ],
    );
    Ok(())
}

/// X2: one object of many, and one namespace of some, besides what a policy without the call costs.
pub(super) fn host_calls(
    runs: &mut Runs,
    count: usize,
    many: usize,
    evaluations: usize,
) -> anyhow::Result<()> {
    let request = json!({"uid": "u", "operation": "CREATE", "object": {}});
    let fields = ["subjects"];
    let idle = policy(
        &guest("", "")?,
        Abi::Wapc,
        "{}",
        objects::collection(1, &fields)?,
    )?;
    let idle = evaluate(&idle, &request, evaluations)?;
    let one = json!({
        "api_version": API_VERSION, "kind": KIND, "name": objects::name(many / 2),
        "namespace": objects::namespace(many / 2), "disable_cache": false,
    });
    let all = json!({"api_version": API_VERSION, "kind": KIND, "namespace": objects::namespace(count / 2)});
    for (what, operation, payload, size) in [
        ("get_resource", "get_resource", one, many),
        ("list of 100", "list_resources_by_namespace", all, count),
    ] {
        let collection = objects::collection(size, &fields)?;
        let began = Instant::now();
        let guest = guest(operation, &payload.to_string())?;
        let policy = policy(&guest, Abi::Wapc, "{}", collection)?;
        let prepared = ms(began.elapsed());
        let cost = evaluate(&policy, &request, evaluations)?;
        runs.row(
            format!("X2: {what} among {size}"),
            [
                ("CPU besides", Unit::Microseconds, cost - idle),
                ("CPU without the call", Unit::Microseconds, idle),
                ("preparing", Unit::Milliseconds, prepared),
            ],
        );
    }
    Ok(())
}

/// Processor time of one evaluation, in microseconds.
fn evaluate(policy: &Policy, request: &serde_json::Value, times: usize) -> anyhow::Result<f64> {
    let request = RawValue::from_string(request.to_string())?;
    let review = Review::admission(&request)?;
    // The first one builds indexes and documents.
    policy.evaluate(&review)?;
    let before = machine::thread_cpu()?;
    for _ in 0..times {
        let verdict = policy.evaluate(&review)?;
        anyhow::ensure!(verdict.allowed, "the policy must allow: {verdict:?}");
    }
    Ok(us(machine::thread_cpu()? - before) / times as f64)
}

fn policy(
    module: &[u8],
    abi: Abi,
    settings: &str,
    mut collection: Collection,
) -> anyhow::Result<Policy> {
    let engine = Engine::new(EngineConfig::small())?;
    let module = engine.compile(module)?;
    let capabilities = vec!["kubernetes/*".to_owned()];
    let spec = PolicySpec {
        settings_json: settings.as_bytes().to_vec().into(),
        host_capabilities: capabilities.clone(),
        ..PolicySpec::new(abi)
    };
    let subject = Subject {
        policy: PolicyKey::cluster("bench"),
        revision: Arc::default(),
        declared: vec![collection.spec().declared().clone()],
        capabilities,
    };
    let data = Arc::new(ContextData::fixed([collection.snapshot()]));
    let live: Arc<dyn LiveReads> = Arc::new(FixedReads {
        data: data.clone(),
        allow_all_access: false,
    });
    let policy = Policy::prepare(&engine, &module, spec)?;
    let services = HostServices::offline();
    policy.connect(Arc::new(with_objects(&services, subject, &data, &live)));
    Ok(policy)
}

/// A waPC policy that makes one host call and accepts; none if there is no operation.
fn guest(operation: &str, payload: &str) -> anyhow::Result<Vec<u8>> {
    let words = ["kubewarden", "kubernetes", operation, payload];
    let mut at = 1_024;
    let mut args = String::new();
    for word in words {
        args += &format!("(i32.const {at}) (i32.const {}) ", word.len());
        at += word.len();
    }
    let bytes = words.concat();
    let bytes: String = bytes.bytes().map(|byte| format!("\\{byte:02x}")).collect();
    let call = match operation {
        "" => String::new(),
        // The reply is read, as a policy that uses it does. Without one the guest fails.
        _ => format!(
            "(if (i32.eqz (call $ask {args})) (then (return (i32.const 0)))) (call $reply (i32.const 65536))"
        ),
    };
    let text = format!(
        r#"(module
  (import "wapc" "__guest_response" (func $respond (param i32 i32)))
  (import "wapc" "__host_call" (func $ask (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "wapc" "__host_response" (func $reply (param i32)))
  (memory (export "memory") 16)
  (data (i32.const 0) "{{\"accepted\":true}}")
  (data (i32.const 1024) "{bytes}")
  (func (export "__guest_call") (param i32 i32) (result i32)
    {call}
    (call $respond (i32.const 0) (i32.const 17))
    (i32.const 1)))"#
    );
    Ok(wat::parse_str(text)?)
}
