//! The admission front end: AdmissionReviews over HTTP, decided by [`crate::evaluation`].

pub(crate) mod body;
mod confirm;
pub(crate) mod fuzz;
mod handler;
mod response;
mod review;
mod subject;

pub(crate) use handler::{Handler, READYZ};
