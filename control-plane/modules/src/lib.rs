//! Policy modules: store, vet, compile ahead of time. `assent-oci` pulls and verifies them.

pub mod attempts;
pub mod store;
pub mod vet;
