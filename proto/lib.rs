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

pub use assent::discovery::v1;

/// Serialised file descriptors of every service, for gRPC reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
