//! The admission front end: AdmissionReviews over HTTP, decided by [`crate::evaluation`].

pub(crate) mod fuzz;
mod handler;
mod response;
mod review;
mod server;

pub(crate) use handler::Handler;
pub(crate) use server::{Server, Transport};
