//! Reads that must not be answered from memory.

use assent_context::{
    CollectionSpec,
    sink::{AccessReview, AccessVerdict, ReadError},
};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::{
    Api, Client,
    api::{GetParams, PostParams},
    core::Request,
};
use serde_json::Value;

/// Reads the API server itself.
#[derive(Clone)]
pub struct LiveReader(pub Client);

// === impl LiveReader ===

impl LiveReader {
    /// One object of a collection's kind; none if there is none.
    pub async fn get(
        &self,
        spec: &CollectionSpec,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>, ReadError> {
        let group = match spec.api_version().contains('/') {
            true => "apis",
            false => "api",
        };
        let place = match spec.namespaced() {
            true => format!("/namespaces/{namespace}"),
            false => String::new(),
        };
        let path = format!("/{group}/{}{place}/{}", spec.api_version(), spec.plural());
        let request = Request::new(path).get(name, &GetParams::default());
        let request = request.map_err(|error| ReadError::Unavailable(error.to_string()))?;
        match self.0.request::<Value>(request).await {
            Ok(object) => Ok(Some(object)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(read_error(error)),
        }
    }

    /// What a subject may do.
    pub async fn review(&self, review: AccessReview) -> Result<AccessVerdict, ReadError> {
        let given = |text: String| Some(text).filter(|text| !text.is_empty());
        let spec = SubjectAccessReviewSpec {
            user: given(review.user),
            groups: Some(review.groups).filter(|groups| !groups.is_empty()),
            resource_attributes: Some(ResourceAttributes {
                namespace: given(review.namespace),
                verb: given(review.verb),
                group: Some(review.group),
                version: given(review.version),
                resource: given(review.resource),
                subresource: given(review.subresource),
                name: given(review.name),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.0.clone());
        let review = SubjectAccessReview {
            spec,
            ..SubjectAccessReview::default()
        };
        let answer = api.create(&PostParams::default(), &review).await;
        let status = answer.map_err(read_error)?.status.unwrap_or_default();
        Ok(AccessVerdict {
            allowed: status.allowed,
            denied: status.denied.unwrap_or_default(),
            reason: status.reason.unwrap_or_default(),
            evaluation_error: status.evaluation_error.unwrap_or_default(),
        })
    }
}

fn read_error(error: kube::Error) -> ReadError {
    match &error {
        kube::Error::Api(status) if status.code == 403 => {
            ReadError::Forbidden(status.message.clone())
        }
        _ => ReadError::Unavailable(error.to_string()),
    }
}
