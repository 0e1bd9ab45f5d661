//! Objects of the cluster that policies read, as both ends of the wire keep them.
//!
//! A policy declares kinds ([`assent_core::policy::ContextResource`]); a kind with its projection
//! and scope is a collection, named by the digest of those ([`CollectionSpec`]). The control
//! plane watches and fills a [`Collection`] with [`Collection::observe`], an evaluator fills its
//! copy with [`Collection::put`] and [`Collection::remove`]; equal content gives equal
//! [roots](Collection::root) on both sides, and [buckets](Collection::differing_buckets) show
//! where two copies differ. Readers get immutable [`Snapshot`]s, which cost no copy.
//!
//! | for | use |
//! |---|---|
//! | checking and normalising what a policy declares | [`spec::normalise`], [`LabelSelector::from_object`] |
//! | naming a collection | [`CollectionSpec::new`], [`CollectionSpec::id`] |
//! | an object from the API server | [`Collection::observe`]: projects, applies the scope, reports the key that changed |
//! | a complete list | [`Collection::retain`] with the keys of the list |
//! | sending a key | [`Collection::get`]: the newest object, or none if it was deleted |
//! | a mark | [`Collection::root`], [`Collection::totals`] |
//! | a client with another root | [`Collection::differing_buckets`], [`Collection::bucket`] |
//! | objects from files instead of a cluster | [`Cluster::new`], [`Cluster::collection`] |
//! | evaluations | [`Collection::snapshot`], [`Snapshot::get`], [`Snapshot::select`] |
//!
//! Nothing here does IO or reads a clock.

pub mod canonical;
pub mod cluster;
pub mod collection;
pub mod feed;
pub mod mark;
mod object;
mod objects;
pub mod path;
pub mod projection;
pub mod selector;
pub mod sink;
pub mod snapshot;
pub mod spec;

pub use cluster::Cluster;
pub use collection::{BUCKETS, Collection, Projected, Totals};
pub use mark::{Mark, SyncState};
pub use object::{Key, Object};
pub use path::FieldPath;
pub use projection::Projection;
pub use selector::{FieldSelector, LabelSelector};
pub use snapshot::Snapshot;
pub use spec::{CollectionId, CollectionSpec};
