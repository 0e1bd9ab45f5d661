//! The admission front end: AdmissionReviews over HTTP, decided by [`crate::evaluation`].

mod body;
mod confirm;
pub(crate) mod fuzz;
mod handler;
mod response;
mod review;

pub(crate) use handler::{Handler, READYZ};
