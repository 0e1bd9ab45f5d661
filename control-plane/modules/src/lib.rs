//! Policy modules: pull, verify, store, vet, compile ahead of time.

pub mod store;
