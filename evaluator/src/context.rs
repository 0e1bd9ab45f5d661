//! Objects of the cluster that policies read: replicated by the control plane, answered from memory.
//!
//! The stream (`stream`) feeds a pure machine (`machine`), which checks every state against its root and publishes
//! it (`data`). Policies read what they declare through host calls (`kubernetes`) or as Rego's data (`documents`);
//! live reads go to the control plane (`live`). What was published is kept on disk (`disk`).

pub(crate) mod data;
pub(crate) mod disk;
pub(crate) mod documents;
pub(crate) mod kubernetes;
pub(crate) mod live;
pub(crate) mod machine;
pub(crate) mod metrics;
mod request;
pub(crate) mod stream;

use std::sync::Arc;

use arc_swap::ArcSwap;
use assent_core::{PolicyKey, policy::ContextResource};
use assent_wasm::HostServices;

pub use data::ContextData;
pub use live::{FixedReads, LiveReads};

use self::{documents::Documents, kubernetes::Kubernetes};

/// Who reads, and what it declares.
#[derive(Clone)]
pub struct Subject {
    /// The policy. A namespaced one reads its own namespace only.
    pub policy: PolicyKey,
    /// The revision on whose behalf the control plane is asked; revisions of equal content share one sandbox.
    pub revision: Arc<ArcSwap<String>>,
    /// The kinds that it may read.
    pub declared: Vec<ContextResource>,
    /// The host calls that it may make.
    pub capabilities: Vec<String>,
}

/// Adds the objects that a policy declares to the services that it can call.
pub fn with_objects(
    services: &HostServices,
    subject: Subject,
    data: &Arc<ContextData>,
    live: &Arc<dyn LiveReads>,
) -> HostServices {
    let services = services.clone();
    let documents = (!subject.declared.is_empty()).then(|| Documents::new(&subject, data));
    let services = services.with(Arc::new(Kubernetes::new(subject, data, live)));
    match documents {
        Some(documents) => services.with_data(Arc::new(documents)),
        None => services,
    }
}
