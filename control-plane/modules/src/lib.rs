//! Policy modules: pull, verify, store, vet, compile ahead of time.

pub mod pull;
pub mod store;
pub mod verify;
pub mod vet;
