//! The host calls `kubernetes/*`, answered from memory as far as possible.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use assent_context::{
    CollectionSpec, FieldSelector, LabelSelector, Object, Projection, Snapshot, canonical,
    sink::AccessReview, snapshot::Query,
};
use assent_core::policy::ContextResource;
use assent_wasm::{CallError, HostNamespace};

use super::{
    Subject,
    data::{ContextData, ReadError, State, View},
    live::LiveReads,
    request,
};

/// What one policy may read.
#[derive(Clone)]
pub(crate) struct Kubernetes {
    policy: Arc<Reader>,
    data: Arc<ContextData>,
    live: Arc<dyn LiveReads>,
    /// The state that one evaluation sees; none between evaluations.
    pinned: Option<Arc<State>>,
}

struct Reader {
    revision: Arc<ArcSwap<String>>,
    /// The namespace of a namespaced policy, which reads no other.
    namespace: Option<String>,
    declared: Vec<ContextResource>,
    may_ask_access: bool,
}

const OPERATIONS: [&str; 4] = [LIST_NAMESPACE, LIST_ALL, GET, CAN_I];
const LIST_NAMESPACE: &str = "list_resources_by_namespace";
const LIST_ALL: &str = "list_resources_all";
const GET: &str = "get_resource";
const CAN_I: &str = "can_i";

// === impl Kubernetes ===

impl Kubernetes {
    pub(super) fn new(
        subject: Subject,
        data: &Arc<ContextData>,
        live: &Arc<dyn LiveReads>,
    ) -> Self {
        let namespace = subject.policy.namespace().map(str::to_owned);
        // A review says what others may do: patterns do not grant it to tenants.
        let mut capabilities = subject.capabilities.iter();
        let exact = capabilities.any(|one| one == "kubernetes/can_i");
        let reader = Reader {
            may_ask_access: namespace.is_none() || exact,
            revision: subject.revision,
            declared: subject.declared,
            namespace,
        };
        Self {
            policy: Arc::new(reader),
            data: data.clone(),
            live: live.clone(),
            pinned: None,
        }
    }

    fn state(&self) -> Arc<State> {
        self.pinned.clone().unwrap_or_else(|| self.data.load())
    }

    fn list(&self, payload: &[u8], in_namespace: bool) -> Result<Vec<u8>, CallError> {
        let request = request::list(payload)?;
        let state = self.state();
        let declared = self.policy.declared(&request.api_version, &request.kind)?;
        let (_, snapshot) = readable(&state, declared)?;
        let spec = snapshot.spec();
        let wanted = match (in_namespace, &request.namespace) {
            (true, Some(namespace)) => Some(namespace.as_str()),
            (true, None) => return Err("the request has no namespace".into()),
            (false, _) => None,
        };
        let namespace = self.policy.namespace(spec, wanted)?;
        let projection = spec.projection();
        let fields: FieldSelector = parse(request.field_selector.as_deref(), "field_selector")?;
        for path in fields.paths() {
            projection
                .check(path)
                .map_err(|missing| unreplicated(spec, &missing.to_string()))?;
        }
        let query = Query {
            namespace: namespace.as_deref(),
            labels: parse::<LabelSelector>(request.label_selector.as_deref(), "label_selector")?,
            fields,
        };
        let mask = mask(spec, &projection, request.field_masks.as_deref())?;
        Ok(write_list(spec, &snapshot.select(&query), mask.as_ref()))
    }

    fn get(&self, payload: &[u8], within: Duration) -> Result<Vec<u8>, CallError> {
        let request = request::get(payload)?;
        let state = self.state();
        let declared = self.policy.declared(&request.api_version, &request.kind)?;
        let (_, snapshot) = readable(&state, declared)?;
        let spec = snapshot.spec();
        let wanted = request.namespace.as_deref().filter(|name| !name.is_empty());
        let namespace = match (spec.namespaced(), wanted) {
            (true, None) => {
                return Err(CallError::Refused(format!(
                    "{spec} is namespaced: the request needs a namespace"
                )));
            }
            (_, wanted) => self.policy.namespace(spec, wanted)?.unwrap_or_default(),
        };
        let mask = mask(spec, &spec.projection(), request.field_masks.as_deref())?;
        let found = match request.disable_cache {
            Some(true) => {
                let revision = self.policy.revision.load();
                let live = self
                    .live
                    .get(&revision, spec, &namespace, &request.name, within);
                live?.map(Answer::Live)
            }
            _ => snapshot
                .get(&namespace, &request.name)
                .map(|object| Answer::Cached(object)),
        };
        let Some(found) = found else {
            let place = match namespace.as_str() {
                "" => String::new(),
                namespace => format!(" in namespace {namespace}"),
            };
            return Err(CallError::Refused(format!(
                "{spec} {:?} not found{place}",
                request.name
            )));
        };
        Ok(masked(found.bytes(), mask.as_ref()))
    }

    fn can_i(&self, payload: &[u8], within: Duration) -> Result<Vec<u8>, CallError> {
        if !self.policy.may_ask_access {
            return Err(
                "a namespaced policy may call kubernetes/can_i only if namespacedPoliciesCapabilities of its \
                 PolicyServer lists exactly that"
                    .into(),
            );
        }
        let request = request::can_i(payload)?;
        let fresh = request.disable_cache == Some(true);
        let query = access_review(request);
        let revision = self.policy.revision.load();
        Ok(self.live.can_i(&revision, query, fresh, within)?)
    }
}

impl HostNamespace for Kubernetes {
    fn name(&self) -> &'static str {
        "kubernetes"
    }

    fn operations(&self) -> &'static [&'static str] {
        &OPERATIONS
    }

    fn is_external(&self) -> bool {
        true
    }

    /// What is in memory is answered at once: only live reads wait.
    fn waits(&self, operation: &str, payload: &[u8]) -> bool {
        match operation {
            GET => request::is_live(payload),
            CAN_I => true,
            _ => false,
        }
    }

    fn pinned(&self) -> Option<Arc<dyn HostNamespace>> {
        Some(Arc::new(Self {
            pinned: Some(self.data.load()),
            ..self.clone()
        }))
    }

    fn call(
        &self,
        operation: &str,
        payload: &[u8],
        within: Duration,
    ) -> Result<Vec<u8>, CallError> {
        match operation {
            LIST_NAMESPACE => self.list(payload, true),
            LIST_ALL => self.list(payload, false),
            GET => self.get(payload, within),
            _ => self.can_i(payload, within),
        }
    }
}

// === impl Reader ===

impl Reader {
    fn declared(&self, api_version: &str, kind: &str) -> Result<&ContextResource, CallError> {
        let mut declared = self.declared.iter();
        let found = declared.find(|one| one.api_version == api_version && one.kind == kind);
        found.ok_or_else(|| {
            CallError::Refused(format!(
                "{kind} ({api_version}) is not declared: add it to spec.contextAwareResources of the policy"
            ))
        })
    }

    /// The namespace to read, none for all of a cluster policy. Never wider than what was declared.
    fn namespace(
        &self,
        spec: &CollectionSpec,
        wanted: Option<&str>,
    ) -> Result<Option<String>, CallError> {
        if let (false, Some(_)) = (spec.namespaced(), wanted) {
            return Err(CallError::Refused(format!(
                "{spec} is not namespaced: leave out the namespace"
            )));
        }
        if let Some(own) = &self.namespace {
            if !spec.namespaced() {
                return Err(CallError::Refused(format!(
                    "a namespaced policy can't read {spec}, which is not namespaced"
                )));
            }
            return match wanted {
                Some(other) if other != own => Err(CallError::Refused(format!(
                    "a policy of namespace {own} can't read namespace {other}"
                ))),
                _ => Ok(Some(own.clone())),
            };
        }
        match wanted {
            Some(namespace) if !spec.has_namespace(namespace) => Err(CallError::Refused(format!(
                "namespace {namespace} is not declared: add it to namespaces of the policy's contextAwareResources \
                 entry for {spec}"
            ))),
            wanted => Ok(wanted.map(str::to_owned)),
        }
    }
}

enum Answer<'a> {
    Cached(&'a Object),
    Live(Vec<u8>),
}

impl Answer<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Answer::Cached(object) => object.json(),
            Answer::Live(json) => json,
        }
    }
}

/// No guest decides from a state that is too old; a missing one is for the guest to report.
pub(super) fn readable<'a>(
    state: &'a State,
    declared: &ContextResource,
) -> Result<(&'a Arc<View>, &'a Snapshot), CallError> {
    state
        .readable(declared, Instant::now())
        .map_err(|error| match error {
            ReadError::Unsynced(why) => CallError::Refused(why),
            ReadError::Stale(why) => CallError::Fatal(why),
        })
}

fn unreplicated(spec: &CollectionSpec, why: &str) -> CallError {
    CallError::Refused(format!("{spec}: {why}"))
}

fn parse<T>(text: Option<&str>, option: &str) -> Result<T, CallError>
where
    T: std::str::FromStr<Err = assent_context::selector::Error>,
{
    let parsed = text.unwrap_or_default().parse();
    parsed.map_err(|error| CallError::Refused(format!("{option}: {error}")))
}

fn mask(
    spec: &CollectionSpec,
    projection: &Projection,
    masks: Option<&[String]>,
) -> Result<Option<Projection>, CallError> {
    let Some(masks) = masks.filter(|masks| !masks.is_empty()) else {
        return Ok(None);
    };
    let narrowed = projection.narrow(masks.iter().map(String::as_str));
    let narrowed = narrowed.map_err(|error| unreplicated(spec, &error.to_string()))?;
    Ok(Some(narrowed))
}

fn masked(json: &[u8], mask: Option<&Projection>) -> Vec<u8> {
    let object = mask.and_then(|mask| Some((mask, serde_json::from_slice(json).ok()?)));
    match object {
        Some((mask, object)) => canonical::to_vec(&mask.project(object)),
        None => json.to_vec(),
    }
}

/// As the API server writes a list, but that each item has version and kind.
fn write_list(
    spec: &CollectionSpec,
    objects: &[&Arc<Object>],
    mask: Option<&Projection>,
) -> Vec<u8> {
    let bytes: usize = objects.iter().map(|object| object.json().len() + 1).sum();
    let text = |text: &str| serde_json::Value::from(text).to_string();
    let (version, kind) = (
        text(spec.api_version()),
        text(&format!("{}List", spec.kind())),
    );
    let head = format!(r#"{{"apiVersion":{version},"kind":{kind},"metadata":{{}},"items":["#);
    let mut list = Vec::with_capacity(head.len() + bytes + 2);
    list.extend(head.as_bytes());
    for (i, object) in objects.iter().enumerate() {
        if i > 0 {
            list.push(b',');
        }
        match mask {
            Some(_) => list.extend(masked(object.json(), mask)),
            None => list.extend_from_slice(object.json()),
        }
    }
    list.extend(b"]}");
    list
}

fn access_review(request: request::CanI) -> AccessReview {
    let review = request.subject_access_review;
    let resource = review.resource_attributes;
    let text = Option::unwrap_or_default;
    AccessReview {
        user: review.user,
        groups: review.groups.unwrap_or_default(),
        namespace: text(resource.namespace),
        verb: resource.verb,
        group: text(resource.group),
        version: text(resource.version),
        resource: resource.resource,
        subresource: text(resource.subresource),
        name: text(resource.name),
    }
}

#[cfg(test)]
mod tests;
