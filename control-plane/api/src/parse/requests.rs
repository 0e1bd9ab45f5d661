//! Reads the specs of policies for requests at Envoy.

use std::sync::Arc;

use assent_core::{
    PolicyKey,
    policy::{self, DEFAULT_ORDER, RequestScope, is_dns_subdomain},
};
use serde_json::Value;

use super::{
    Options, Parsed, Rollback,
    policy::{read_history, read_module, read_rollout, read_server, read_settings, read_text},
    reader::{Fields, Node},
};
use crate::{
    canonical,
    requests::{
        DEFAULT_TIMEOUT_MILLISECONDS, HeaderMatch, MAX_ORDER, MAX_TIMEOUT_MILLISECONDS,
        RequestMatch, RequestPolicySpec,
    },
    rules::{FailurePolicy, MAX_ITEMS, MatchPolicy, SideEffects},
};

/// The longest path that a policy names; Envoy's limit of all headers is 60 KiB.
const MAX_PATH: usize = 1_024;

/// Every field of a spec, as it is written back, with the module's URL.
pub(super) struct Read {
    spec: RequestPolicySpec,
    module: String,
}

pub(super) fn read_fields(node: &Node<'_>, options: &Options) -> Option<Read> {
    let mut f = node.fields();
    let module = f
        .require("module", "it is the URL of a Wasm module")
        .and_then(|node| Some((node.string()?, read_module(&node, options)?)));
    let order = i32::try_from(DEFAULT_ORDER).unwrap_or_default();
    let spec = RequestPolicySpec {
        policy_server: read_server(&mut f),
        module: String::new(),
        settings: read_settings(&mut f),
        r#match: read_match(&mut f),
        order: f.integer("order", 0..=MAX_ORDER).unwrap_or(order),
        reads_body: f.boolean("readsBody", true),
        mode: f.choice("mode", &["protect", "monitor"]),
        timeout_eval_milliseconds: f
            .integer("timeoutEvalMilliseconds", 1..=MAX_TIMEOUT_MILLISECONDS)
            .unwrap_or(DEFAULT_TIMEOUT_MILLISECONDS),
        entrypoint: read_text(&mut f, "entrypoint", 1024).filter(|text| !text.is_empty()),
        rollout: read_rollout(&mut f),
        revision_history_limit: read_history(&mut f),
    };
    f.close();
    let (written, module) = module?;
    Some(Read {
        spec: RequestPolicySpec {
            module: written,
            ..spec
        },
        module,
    })
}

fn read_match(f: &mut Fields<'_>) -> Vec<RequestMatch> {
    let items = limited(f, "match");
    let entry = |node: &Node<'_>| {
        let mut f = node.fields();
        let entry = RequestMatch {
            hosts: read_list(&mut f, "hosts", check_host),
            paths: read_list(&mut f, "paths", check_path),
            path_prefixes: read_list(&mut f, "pathPrefixes", check_path),
            methods: read_list(&mut f, "methods", check_method),
            headers: limited(&mut f, "headers")
                .iter()
                .filter_map(read_header)
                .collect(),
        };
        f.close();
        if entry == RequestMatch::default() {
            node.error(
                "must have hosts, paths, pathPrefixes, methods or headers; \
                 without any entry the policy decides about all requests",
            );
        }
        entry
    };
    items.iter().map(entry).collect()
}

fn read_header(node: &Node<'_>) -> Option<HeaderMatch> {
    let mut f = node.fields();
    let name = f.require("name", "it is the name of a header in lower case");
    let name = name.and_then(|node| {
        let name = node.string()?;
        if let Err(why) = check_header(&name) {
            node.error(why);
        }
        Some(name)
    });
    let exact = f.string("exact");
    let present = f.get("present").map(|node| {
        if node.value != &Value::Bool(true) {
            node.error("must be true; a policy can't match requests without a header");
        }
        true
    });
    f.close();
    if exact.is_some() == present.is_some() {
        node.error("must have either exact or present");
    }
    Some(HeaderMatch {
        name: name?,
        exact,
        present,
    })
}

fn limited<'a>(f: &mut Fields<'a>, name: &'static str) -> Vec<Node<'a>> {
    let Some(node) = f.get(name) else {
        return Vec::new();
    };
    let items = node.items();
    if items.len() > MAX_ITEMS {
        node.error(format!("must not have more than {MAX_ITEMS} entries"));
    }
    items
}

fn read_list(
    f: &mut Fields<'_>,
    name: &'static str,
    check: fn(&str) -> Result<(), &'static str>,
) -> Vec<String> {
    let items = limited(f, name);
    let item = |node: &Node<'_>| {
        let text = node.string()?;
        if let Err(why) = check(&text) {
            node.error(format!("\"{text}\" {why}"));
        }
        Some(text)
    };
    items.iter().filter_map(item).collect()
}

fn check_host(host: &str) -> Result<(), &'static str> {
    let name = host.strip_prefix("*.").unwrap_or(host);
    let is_v6 = name
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .is_some_and(|address| address.parse::<std::net::Ipv6Addr>().is_ok());
    if is_dns_subdomain(name) || (is_v6 && name == host) {
        return Ok(());
    }
    Err(
        "is not a host: write it in lower case and without a port, such as shop.example.com or *.example.com",
    )
}

/// Paths are compared after they were unescaped and their dot segments removed.
fn check_path(path: &str) -> Result<(), &'static str> {
    if !path.starts_with('/') || path.len() > MAX_PATH {
        return Err("is not a path: it must begin with a slash and have at most 1024 characters");
    }
    if path.contains(['?', '#', '%', '\\']) || path.contains(char::is_control) {
        return Err(
            "is not a path as it is compared: write it unescaped, without query and fragment",
        );
    }
    let inner = path.strip_suffix('/').unwrap_or(path);
    let mut segments = inner.split('/').skip(1);
    if segments.any(|segment| matches!(segment, "" | "." | "..")) {
        return Err("is not a path as it is compared: remove empty and dot segments");
    }
    Ok(())
}

fn check_method(method: &str) -> Result<(), &'static str> {
    let is_upper = |byte: u8| byte.is_ascii_uppercase() || byte == b'-';
    match !method.is_empty() && method.len() <= 32 && method.bytes().all(is_upper) {
        true => Ok(()),
        false => Err("is not a method in upper case, such as GET"),
    }
}

fn check_header(name: &str) -> Result<(), &'static str> {
    let is_token = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"!#$%&'*+-.^_`|~".contains(&byte)
    };
    match !name.is_empty() && name.len() <= 256 && name.bytes().all(is_token) {
        true => Ok(()),
        false => Err(
            "must be the name of a header in lower case; use hosts, paths and methods for what is no header",
        ),
    }
}

// === impl Read ===

impl Read {
    pub(super) fn resolve(self, key: PolicyKey, rollback: Option<Rollback>) -> Parsed {
        let spec_json = serde_json::to_value(&self.spec).expect("a spec must be JSON");
        let spec = self.spec;
        let scope = RequestScope {
            matches: spec.r#match.into_iter().map(entry).collect(),
            order: spec.order.unsigned_abs(),
            reads_body: spec.reads_body,
        };
        Parsed {
            key,
            server: spec.policy_server,
            module: self.module,
            settings: canonical::to_vec(&Value::Object(spec.settings)).into(),
            settings_from: Vec::new(),
            rules: Vec::new(),
            mutating: false,
            mode: spec.mode.into(),
            failure_policy: FailurePolicy::default(),
            match_policy: MatchPolicy::default(),
            match_conditions: Vec::new(),
            object_selector: None,
            namespace_selector: None,
            side_effects: SideEffects::default(),
            timeout_seconds: 0,
            timeout_eval_ms: Some(spec.timeout_eval_milliseconds.unsigned_abs()),
            message: String::new(),
            entrypoint: spec.entrypoint.unwrap_or_default(),
            context_resources: Vec::new(),
            background_audit: false,
            progress_deadline_seconds: spec.rollout.progress_deadline_seconds.unsigned_abs(),
            history_limit: spec.revision_history_limit.unsigned_abs() as usize,
            rollback,
            requests: Some(Arc::new(scope)),
            spec_json: Arc::from(canonical::to_vec(&spec_json)),
        }
    }
}

fn entry(entry: RequestMatch) -> policy::RequestMatch {
    let header = |header: HeaderMatch| policy::HeaderMatch {
        name: header.name,
        exact: header.exact,
    };
    policy::RequestMatch {
        hosts: entry.hosts,
        paths: entry.paths,
        path_prefixes: entry.path_prefixes,
        methods: entry.methods,
        headers: entry.headers.into_iter().map(header).collect(),
    }
}
