//! The sandbox: wasmtime engine, the four policy ABIs, limits.
//!
//! A policy module becomes a [`Module`] (compiled once per engine), a [`Module`] with settings becomes a
//! [`Policy`] (linked and pre-instantiated), and each [`Policy::evaluate`] runs in a sandbox of its own that
//! nothing survives. Everything here is synchronous and may be called from many threads at once; a call
//! blocks its thread for at most the policy's deadline.
//!
//! This is the only crate that names wasmtime.

mod abi;
mod annotate;
mod answer;
mod artefact;
mod budget;
mod effects;
mod engine;
mod exports;
#[doc(hidden)]
pub mod fuzz;
mod headroom;
mod host;
mod inspect;
pub mod json;
mod limits;
mod log;
mod metadata;
mod opa;
mod patch;
mod policy;
mod response;
mod review;
mod sandbox;
mod snapshot;
mod verdict;
mod wapc;
mod wasi;

pub use abi::{Abi, UnknownAbi};
pub use annotate::{AnnotateError, annotate};
pub use budget::{BudgetExceeded, MemoryBudget, Reservation};
pub use effects::{Headers, RequestEffects};
pub use engine::{Engine, EngineConfig, EngineError, Error};
pub use host::{
    CallError, DataForm, DataSource, Document, HostNamespace, HostServices, capability,
};
pub use inspect::{Export, Import, InspectError, Inspection, inspect};
pub use limits::{Limits, MAX_MODULE_BYTES};
pub use log::LogText;
pub use metadata::{ContextAwareResource, Metadata, MetadataError, PolicyType};
pub use policy::{EvalError, Module, Policy, PolicySpec, PrepareError, Stage};
pub use response::AdmissionResponse;
pub use review::{Review, ReviewError};
pub use snapshot::{Answers, Calls, Snapshot, SnapshotError};
pub use verdict::Verdict;
