//! The discovery protocol: messages, clients and servers generated from `proto/`.
//!
//! Nothing is written by hand here; `proto/assent/discovery/v1/*.proto` is the contract.

#![allow(unreachable_pub, missing_docs, rustdoc::invalid_html_tags)]

/// `google.rpc`: the error model.
pub mod google {
    /// `google.rpc.Status`.
    pub mod rpc {
        tonic::include_proto!("google.rpc");
    }
}

/// Packages are nested as their names are, which is how generated code refers to them.
pub mod assent {
    /// `assent.discovery`.
    pub mod discovery {
        /// `assent.discovery.v1`: services and messages.
        pub mod v1 {
            tonic::include_proto!("assent.discovery.v1");
        }
    }
}

/// The parts of Envoy's API that evaluators and the control plane speak. The crate `envoy-types` has all of it, which is
/// eight megabytes of generated code.
pub mod envoy {
    /// `envoy.admin`.
    pub mod admin {
        /// `envoy.admin.v3`: what clients have done with resources.
        pub mod v3 {
            tonic::include_proto!("envoy.admin.v3");
        }
    }
    /// `envoy.config`.
    pub mod config {
        /// `envoy.config.core`.
        pub mod core {
            /// `envoy.config.core.v3`: addresses, headers, metadata.
            pub mod v3 {
                tonic::include_proto!("envoy.config.core.v3");
            }
        }
    }
    /// `envoy.type`.
    pub mod r#type {
        /// `envoy.type.v3`: status codes.
        pub mod v3 {
            tonic::include_proto!("envoy.r#type.v3");
        }
        /// `envoy.type.matcher`.
        pub mod matcher {
            /// `envoy.type.matcher.v3`: which nodes a request asks for.
            pub mod v3 {
                tonic::include_proto!("envoy.r#type.matcher.v3");
            }
        }
    }
    /// `envoy.service`.
    pub mod service {
        /// `envoy.service.auth`.
        pub mod auth {
            /// `envoy.service.auth.v3`: external authorization.
            pub mod v3 {
                tonic::include_proto!("envoy.service.auth.v3");
            }
        }
        /// `envoy.service.status`.
        pub mod status {
            /// `envoy.service.status.v3`: the discovery state for tools of xDS.
            pub mod v3 {
                tonic::include_proto!("envoy.service.status.v3");
            }
        }
    }
}

pub use assent::discovery::v1;

/// Serialised file descriptors of every service, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
