//! Custom resource types of `policies.assent.dev` and their only parser.
//!
//! Everything that reads a policy object (a watched directory, the mirror of a cluster, the
//! admission webhook, the command line) uses [`parse`]: what one accepts, all accept.

pub mod canonical;
pub mod crd;
pub mod json;
pub mod parse;
pub mod policy;
pub mod requests;
pub mod revision;
pub mod rules;
pub mod server;
pub mod settings;
pub mod status;
pub mod tenancy;

/// Manifests as text, read as `kubectl` reads them.
pub use assent_yaml as yaml;
pub use parse::{Manifest, Options, Parsed, ParsedServer};
pub use policy::{
    AdmissionPolicy, AdmissionPolicySpec, ClusterAdmissionPolicy, ClusterAdmissionPolicySpec,
};
pub use revision::{PolicyRevision, PolicyRevisionSpec};
pub use server::{PolicyServer, PolicyServerSpec};
pub use status::PolicyStatus;

/// The API group of every kind here.
pub const GROUP: &str = "policies.assent.dev";

/// `apiVersion` of every kind here.
pub const API_VERSION: &str = "policies.assent.dev/v1alpha1";

/// Asks for a rollback: `previous`, or the number of a generation.
pub const ROLLBACK_ANNOTATION: &str = "policies.assent.dev/rollback-to";
