//! The Envoy front end: `envoy.service.auth.v3.Authorization/Check`, decided by [`crate::evaluation`].

pub mod check;
mod document;
pub(crate) mod fuzz;
mod grpc;
mod handler;
mod matching;
mod parsed_body;
mod path;
mod response;
mod subject;
pub(crate) mod table;

pub(crate) use handler::CheckHandler;
pub(crate) use table::RequestTable;
