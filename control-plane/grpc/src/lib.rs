//! Discovery, module, client-status and certificate services over tonic.
//!
//! One task per stream runs a [`assent_core::session::Session`]. What the streams of one
//! PolicyServer share (the snapshot and its encoded frames) is behind one `Arc`, which
//! publishing swaps. This crate does not know Kubernetes. Types of the wire stay in `to_proto`,
//! `from_proto` and `assent-wire`.

mod accept;
pub mod auth;
pub mod certificate;
pub mod conn;
mod connection;
pub mod context;
pub mod csds;
mod discovery;
mod encode;
pub mod events;
pub mod exposure;
mod frames;
mod from_proto;
pub mod hub;
pub mod metrics;
pub mod modules;
pub mod peers;
mod pipe;
mod registry;
pub mod rollout;
pub mod serve;
pub mod status;
mod stream;
pub mod tls;
mod to_proto;

pub use auth::{Access, Authenticator, Principal};
pub use context::ContextHub;
pub use discovery::Discovery;
pub use events::StreamEvent;
pub use exposure::check_exposure;
pub use hub::{Config, ControlPlane, Hub, Serving};
pub use metrics::Metrics;
pub use serve::{Options, Services, serve};
pub use tls::Tls;
