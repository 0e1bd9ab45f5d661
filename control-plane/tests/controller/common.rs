//! Tests that hold in a cluster and in standalone mode.

mod contexts;
mod deletion;
mod flips;
mod policies;
mod restart;
mod rollback;
mod servers;
mod signatures;
mod startup;
mod statuses;
mod tenancy;
