//! Reads the two kinds of policies.

use std::{collections::BTreeSet, sync::Arc};

use assent_core::{PolicyKey, policy::is_dns_subdomain};
use serde_json::{Map, Value};

use super::{
    Errors, FieldError, Kind, Options, Parsed, Rollback, context, metadata,
    reader::{Fields, Node, Sink},
    requests, rules, settings, source,
};
use crate::{
    canonical,
    policy::{
        AdmissionPolicySpec, ClusterAdmissionPolicySpec, DEFAULT_HISTORY_LIMIT,
        DEFAULT_PROGRESS_DEADLINE_SECONDS, DEFAULT_TIMEOUT_SECONDS, MAX_HISTORY_LIMIT,
        MAX_TIMEOUT_SECONDS, Rollout, Source,
    },
};

/// Schemes that a module URL may have.
const SCHEMES: &[&str] = &["registry", "https", "http", "file", "configmap"];

pub(super) fn read(value: &Value, options: &Options) -> Result<Parsed, Errors> {
    let kind = metadata::kind(value)?;
    let sink = Sink::default();
    let parsed = read_object(&sink, kind, value, options);
    sink.result(parsed)
}

pub(super) fn read_spec(
    key: &PolicyKey,
    value: &Value,
    options: &Options,
) -> Result<Parsed, Errors> {
    let sink = Sink::default();
    let node = Node {
        sink: &sink,
        path: "spec".to_owned(),
        value,
    };
    if key.is_for_requests() {
        let read = requests::read_fields(&node, options);
        return sink.result(read.map(|read| read.resolve(key.clone(), None)));
    }
    let parsed = read_fields(&node, key.namespace().is_some(), options)
        .map(|read| read.resolve(key.clone(), None));
    sink.result(parsed)
}

/// Says what an update must not change.
pub fn immutable_fields(old: &Parsed, new: &Parsed) -> Result<(), Errors> {
    if old.server == new.server {
        return Ok(());
    }
    Err(Errors(vec![FieldError {
        path: "spec.policyServer".to_owned(),
        message: format!(
            "is immutable: \"{}\" can't become \"{}\"; delete the policy and create it again to move it",
            old.server, new.server
        ),
    }]))
}

fn read_object(sink: &Sink, kind: Kind, value: &Value, options: &Options) -> Option<Parsed> {
    let root = Node {
        sink,
        path: String::new(),
        value,
    };
    let mut fields = root.fields();
    for name in ["apiVersion", "kind", "status"] {
        fields.get(name);
    }
    let metadata = metadata::read(&mut fields);
    let namespaced = kind.is_namespaced();
    let namespace = check_namespace(sink, kind, metadata.namespace, options);
    let spec = fields.require("spec", "it describes the policy");
    let key = metadata.name.and_then(|name| {
        let namespace = match namespaced {
            true => namespace?,
            false => String::new(),
        };
        kind.policy_key(&namespace, &name)
    });
    if matches!(kind, Kind::RequestPolicy | Kind::ClusterRequestPolicy) {
        let read = spec.and_then(|node| requests::read_fields(&node, options));
        fields.close();
        return Some(read?.resolve(key?, metadata.rollback));
    }
    let spec = spec.and_then(|node| read_fields(&node, namespaced, options));
    fields.close();
    if let Some(read) = spec.as_ref().filter(|read| read.namespaced) {
        let common = &read.spec.common;
        if common.mutating {
            options.protected_resources.check(sink, &common.rules);
        }
    }
    Some(spec?.resolve(key?, metadata.rollback))
}

fn check_namespace(
    sink: &Sink,
    kind: Kind,
    namespace: Option<String>,
    options: &Options,
) -> Option<String> {
    let path = "metadata.namespace";
    match (kind.is_namespaced(), namespace) {
        (false, None) => None,
        (false, Some(_)) => {
            let kind = kind.as_str();
            sink.error(path, format!("a {kind} has no namespace; remove it"));
            None
        }
        (true, None) if options.standalone => Some("default".to_owned()),
        (true, None) => {
            sink.error(path, "must be given; the policy applies to this namespace");
            None
        }
        (true, Some(namespace)) => {
            if !is_dns_subdomain(&namespace) || namespace.contains('.') || namespace.len() > 63 {
                sink.error(path, format!("\"{namespace}\" is not a DNS label"));
                return None;
            }
            if options.excluded_namespaces.contains(&namespace) {
                sink.error(path, format!("policies never apply to the namespace {namespace}; put the policy elsewhere"));
            }
            Some(namespace)
        }
    }
}

/// Every field of a spec, as it is written back, with what is not a plain copy.
struct Read {
    spec: ClusterAdmissionPolicySpec,
    module: String,
    namespaced: bool,
}

fn read_fields(node: &Node<'_>, namespaced: bool, options: &Options) -> Option<Read> {
    let mut f = node.fields();
    let module = read_origin(&mut f, options);
    let rules = rules::read(&mut f, namespaced);
    let timeout_seconds = f.integer("timeoutSeconds", 1..=MAX_TIMEOUT_SECONDS);
    let timeout_seconds = timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS);
    let spec = AdmissionPolicySpec {
        policy_server: read_server(&mut f),
        module: String::new(),
        source: None,
        settings: read_settings(&mut f),
        settings_from: settings::read(&mut f, namespaced, options),
        settings_version: read_text(&mut f, "settingsVersion", 64),
        rules,
        mutating: f.boolean("mutating", false),
        mode: f.choice("mode", &["protect", "monitor"]),
        failure_policy: f.choice("failurePolicy", &["Fail", "Ignore"]),
        match_policy: f.choice("matchPolicy", &["Equivalent", "Exact"]),
        match_conditions: rules::conditions(&mut f),
        object_selector: f.get("objectSelector").map(|node| rules::selector(&node)),
        side_effects: f.choice("sideEffects", &["None", "NoneOnDryRun"]),
        timeout_seconds,
        timeout_eval_seconds: read_timeout_eval(&mut f, timeout_seconds),
        message: read_text(&mut f, "message", 4096),
        entrypoint: read_text(&mut f, "entrypoint", 1024).filter(|text| !text.is_empty()),
        context_aware_resources: context::read(&mut f, namespaced),
        background_audit: Some(f.boolean("backgroundAudit", true)),
        rollout: read_rollout(&mut f),
        revision_history_limit: read_history(&mut f),
    };
    let mut spec = ClusterAdmissionPolicySpec {
        common: spec,
        namespace_selector: None,
    };
    read_cluster_fields(&mut f, &mut spec, namespaced);
    f.close();
    let Origin {
        written,
        source,
        module,
    } = module?;
    spec.common.module = written;
    spec.common.source = source;
    Some(Read {
        spec,
        module,
        namespaced,
    })
}

/// Reads fields that only cluster policies may have. The error names the kind.
fn read_cluster_fields(
    f: &mut Fields<'_>,
    spec: &mut ClusterAdmissionPolicySpec,
    namespaced: bool,
) {
    let selector = f.get("namespaceSelector");
    if namespaced {
        if let Some(node) = selector {
            node.error("is for ClusterAdmissionPolicy only; remove it");
        }
        return;
    }
    spec.namespace_selector = selector.map(|node| rules::selector(&node));
}

pub(super) fn read_server(f: &mut Fields<'_>) -> String {
    let default = assent_core::policy::DEFAULT_SERVER;
    let Some(node) = f.get("policyServer") else {
        return default.to_owned();
    };
    let name = node.string().unwrap_or_default();
    if node.value.is_string() && !is_dns_subdomain(&name) {
        node.error(format!("\"{name}\" is not the name of a PolicyServer"));
    }
    name
}

/// Where a policy's module comes from.
struct Origin {
    written: String,
    source: Option<Source>,
    /// The URL; a text is part of its own.
    module: String,
}

/// `module` or `source`: exactly one of them.
fn read_origin(f: &mut Fields<'_>, options: &Options) -> Option<Origin> {
    if let Some(node) = f.get("source") {
        if let Some(module) = f.get("module") {
            module.error("give either module or source; remove one of the two");
        }
        return source::read(&node).map(|(source, module)| Origin {
            written: String::new(),
            source: Some(source),
            module,
        });
    }
    let node = f.require("module", "it is the URL of a Wasm module, or give source")?;
    Some(Origin {
        written: node.string()?,
        source: None,
        module: read_module(&node, options)?,
    })
}

/// The URL with its scheme; without one it is an image.
pub(super) fn read_module(node: &Node<'_>, options: &Options) -> Option<String> {
    let text = node.string()?;
    if text.is_empty() || text.len() > 2048 || text.contains(char::is_whitespace) {
        node.error("must be a URL without spaces, at most 2048 characters");
        return None;
    }
    let (scheme, rest) = match text.split_once("://") {
        Some((scheme, rest)) => (scheme, rest),
        None => ("registry", text.as_str()),
    };
    if !SCHEMES.contains(&scheme) {
        node.error(format!(
            "unknown scheme \"{scheme}\"; known are registry, https, http, configmap and file"
        ));
    } else if rest.is_empty() {
        node.error(format!("nothing follows \"{scheme}://\"; name the module"));
    } else if scheme == "configmap" && options.standalone {
        node.error("configmap:// works only in a cluster; use file://");
    } else if scheme == "file" && !options.standalone {
        node.error("file:// modules work only without a cluster; push the module to a registry");
    }
    Some(format!("{scheme}://{rest}"))
}

pub(super) fn read_settings(f: &mut Fields<'_>) -> Map<String, Value> {
    let Some(node) = f.get("settings") else {
        return Map::new();
    };
    match node.value {
        Value::Object(map) => map.clone(),
        _ => {
            node.fields();
            Map::new()
        }
    }
}

fn read_timeout_eval(f: &mut Fields<'_>, timeout: i32) -> Option<i32> {
    let seconds = f.integer("timeoutEvalSeconds", 1..=MAX_TIMEOUT_SECONDS)?;
    if seconds >= timeout {
        f.get("timeoutEvalSeconds")?.error(format!(
            "must be less than timeoutSeconds ({timeout}), so that the evaluation ends before the caller gives up"
        ));
    }
    Some(seconds)
}

pub(super) fn read_text(f: &mut Fields<'_>, name: &'static str, max: usize) -> Option<String> {
    let node = f.get(name)?;
    let text = node.string()?;
    if text.chars().count() > max {
        node.error(format!("must not be longer than {max} characters"));
    }
    Some(text)
}

pub(super) fn read_history(f: &mut Fields<'_>) -> i32 {
    let limit = f.integer("revisionHistoryLimit", 0..=MAX_HISTORY_LIMIT);
    limit.unwrap_or(DEFAULT_HISTORY_LIMIT)
}

pub(super) fn read_rollout(f: &mut Fields<'_>) -> Rollout {
    let Some(node) = f.get("rollout") else {
        return Rollout::default();
    };
    let mut f = node.fields();
    let seconds = f.integer("progressDeadlineSeconds", 1..=i32::MAX);
    f.close();
    Rollout {
        progress_deadline_seconds: seconds.unwrap_or(DEFAULT_PROGRESS_DEADLINE_SECONDS),
    }
}

// === impl Read ===

impl Read {
    fn resolve(self, key: PolicyKey, rollback: Option<Rollback>) -> Parsed {
        let spec_json = match self.namespaced {
            true => serde_json::to_value(&self.spec.common),
            false => serde_json::to_value(&self.spec),
        };
        let spec_json = spec_json.expect("a spec must be JSON");
        let ClusterAdmissionPolicySpec {
            common: spec,
            namespace_selector,
        } = self.spec;
        let context = spec.context_aware_resources.into_iter();
        let context = context.map(|resource| context::resolve(resource, key.namespace()));
        let context_resources: BTreeSet<_> = context.collect();
        Parsed {
            key,
            server: spec.policy_server,
            module: self.module,
            settings: canonical::to_vec(&Value::Object(spec.settings)).into(),
            settings_from: spec.settings_from,
            rules: spec.rules,
            mutating: spec.mutating,
            mode: spec.mode.into(),
            failure_policy: spec.failure_policy,
            match_policy: spec.match_policy,
            match_conditions: spec.match_conditions,
            object_selector: spec.object_selector,
            namespace_selector,
            side_effects: spec.side_effects,
            timeout_seconds: spec.timeout_seconds.unsigned_abs(),
            timeout_eval_ms: spec.timeout_eval_seconds.map(|s| s.unsigned_abs() * 1_000),
            message: spec.message.unwrap_or_default(),
            entrypoint: spec.entrypoint.unwrap_or_default(),
            context_resources: context_resources.into_iter().collect(),
            background_audit: spec.background_audit.unwrap_or(true),
            progress_deadline_seconds: spec.rollout.progress_deadline_seconds.unsigned_abs(),
            history_limit: spec.revision_history_limit.unsigned_abs() as usize,
            rollback,
            requests: None,
            spec_json: Arc::from(canonical::to_vec(&spec_json)),
        }
    }
}
