//! The control plane's own admission webhooks: defaults and validation of the kinds that users
//! write, and evaluators for the pods that ask for one.
//!
//! The modules below decide over plain values; here requests are read and responses written.

mod authorizer;
mod cache;
pub mod configurations;
mod context;
pub mod defaults;
pub mod inject;
mod patch;
pub mod permissions;
pub mod review;
pub mod tenancy;
pub mod validate;
pub mod warnings;

use std::{collections::BTreeMap, sync::Arc};

use assent_api::tenancy::AllowedNamespaces;
use assent_core::PolicyKey;
use axum::{
    Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State as Shared, rejection::BytesRejection},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::post,
};
use serde_json::json;

pub use self::{
    authorizer::{ApiAuthorizer, Authorizer},
    cache::AdmissionCache,
    context::{ApiKinds, KindFinder},
};
use self::{
    inject::{Outcome, Parts},
    review::{Error, Request, Verdict},
};

/// Where defaults are filled in.
pub const MUTATE_PATH: &str = "/mutate-policies";

/// Where objects are validated.
pub const VALIDATE_PATH: &str = "/validate-policies";

/// Where pods get their evaluators.
pub const INJECT_PATH: &str = "/inject";

/// An UPDATE carries two objects of at most 3 MiB each, and their envelope.
const MAX_BODY: usize = 7 << 20;

/// The state of the cluster that decisions about one object depend on.
#[derive(Clone, Debug, Default)]
pub struct AdmissionView {
    /// PolicyServers that exist.
    pub servers: BTreeMap<String, ServerView>,
    /// Policies in `protect` mode by their PolicyServer.
    pub protecting: BTreeMap<String, Vec<PolicyKey>>,
    /// How many policies there are by namespace, without those that are being deleted.
    pub policies: BTreeMap<String, usize>,
    /// Labels of namespaces, if a PolicyServer selects namespaces by them.
    pub namespaces: BTreeMap<String, BTreeMap<String, String>>,
}

/// A PolicyServer that exists.
#[derive(Clone, Debug, Default)]
pub struct ServerView {
    /// Namespaces whose policies it runs, if it says so.
    pub policies_from: Option<AllowedNamespaces>,
    /// Namespaces whose pods may have an evaluator beside them.
    pub allowed_namespaces: Vec<String>,
    /// The evaluator's container in its own pods.
    pub own: Arc<Parts>,
    /// The evaluator's container in pods of users.
    pub beside: Arc<Parts>,
}

/// Provides the state of the cluster.
pub trait State: Send + Sync + 'static {
    /// The current state; none until everything was listed once.
    fn known(&self) -> Option<Arc<AdmissionView>>;

    /// Called with the outcome for each pod that asked for an evaluator.
    fn observe(&self, outcome: &Outcome);
}

/// Settings of the installation.
#[derive(Clone, Debug)]
pub struct Options {
    /// The control plane's namespace.
    pub namespace: String,
    /// How objects are parsed.
    pub parse: assent_api::Options,
    /// Policies that a namespace may have; `None` for any number.
    pub max_policies_per_namespace: Option<usize>,
    /// Whether every kubelet supports native sidecars.
    pub native_sidecars: bool,
}

/// Responds to reviews.
struct Admission {
    options: Options,
    state: Arc<dyn State>,
    authorizer: Arc<dyn Authorizer>,
    kinds: Arc<dyn KindFinder>,
}

/// The three webhooks.
pub fn router(
    options: Options,
    state: Arc<dyn State>,
    authorizer: Arc<dyn Authorizer>,
    kinds: Arc<dyn KindFinder>,
) -> Router {
    let admission = Admission {
        options,
        state,
        authorizer,
        kinds,
    };
    Router::new()
        .route(MUTATE_PATH, post(mutate))
        .route(VALIDATE_PATH, post(check))
        .route(INJECT_PATH, post(inject))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(Arc::new(admission))
}

type Body = Result<Bytes, BytesRejection>;

async fn mutate(
    Shared(admission): Shared<Arc<Admission>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    answer(&headers, body, async |request| admission.mutate(request)).await
}

async fn check(
    Shared(admission): Shared<Arc<Admission>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    answer(&headers, body, async |request| {
        admission.validate(request).await
    })
    .await
}

async fn inject(
    Shared(admission): Shared<Arc<Admission>>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    answer(&headers, body, async |request| admission.inject(request)).await
}

async fn answer(
    headers: &HeaderMap,
    body: Body,
    decide: impl AsyncFnOnce(&Request) -> Result<Verdict, Error>,
) -> Response {
    let decided = async {
        let request = read(headers, body)?;
        let verdict = decide(&request).await?;
        Ok::<_, Error>(verdict.review(&request.uid))
    };
    match decided.await {
        Ok(review) => Json(review).into_response(),
        Err(error) => {
            tracing::warn!(%error, "rejected an AdmissionReview");
            let body = Json(json!({ "error": error.to_string() }));
            (error.status(), body).into_response()
        }
    }
}

fn read(headers: &HeaderMap, body: Body) -> Result<Request, Error> {
    review::check_content_type(headers)?;
    let body = body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Error::TooLarge(MAX_BODY),
        _ => Error::Body(rejection.body_text()),
    })?;
    Request::parse(&body)
}

// === impl Admission ===

impl Admission {
    fn mutate(&self, request: &Request) -> Result<Verdict, Error> {
        request.expect_ours()?;
        Ok(Verdict::patch(defaults::defaults(
            request,
            &self.options.parse,
        )))
    }

    async fn validate(&self, request: &Request) -> Result<Verdict, Error> {
        if !request.is_revision() {
            request.expect_ours()?;
        }
        let mut verdict = self.validated(request);
        if verdict.refusal.is_none() {
            let Options {
                namespace, parse, ..
            } = &self.options;
            let required = permissions::required(request, namespace, parse);
            let user = &request.user_info;
            let refused = authorizer::authorize(&*self.authorizer, user, &required).await;
            verdict = refused.unwrap_or(verdict);
        }
        if verdict.refusal.is_none() {
            let refused = self.check_reading(request).await;
            verdict = refused.unwrap_or(verdict);
        }
        if let Some(refusal) = &verdict.refusal {
            let (name, namespace) = (&request.name, &request.namespace);
            tracing::info!(%name, %namespace, why = %refusal.message, "denied an object");
        }
        Ok(verdict)
    }

    /// Whether the author may read what the policy declares.
    async fn check_reading(&self, request: &Request) -> Option<Verdict> {
        let added = context::added(request, &self.options.parse);
        if added.is_empty() {
            return None;
        }
        match context::required(added, &*self.kinds).await {
            Ok(required) => {
                let user = &request.user_info;
                authorizer::authorize(&*self.authorizer, user, &required).await
            }
            Err(why) => Some(Verdict::later(format!(
                "failed to look up a kind of spec.contextAwareResources: {why}; try again in a moment"
            ))),
        }
    }

    /// Everything that can be said without asking the API server.
    fn validated(&self, request: &Request) -> Verdict {
        let Options {
            parse,
            max_policies_per_namespace: max,
            ..
        } = &self.options;
        let known = self.state.known();
        let verdict = validate::validate(request, known.as_deref(), parse);
        let refusal = known.filter(|_| verdict.refusal.is_none());
        let refusal = refusal.and_then(|known| tenancy::refusal(request, &known, *max, parse));
        refusal.map_or(verdict, Verdict::forbidden)
    }

    fn inject(&self, request: &Request) -> Result<Verdict, Error> {
        request.expect_pod()?;
        let known = self.state.known();
        let outcome = inject::inject(
            &request.object,
            &request.namespace,
            known.as_deref(),
            &self.options,
        );
        self.state.observe(&outcome);
        Ok(outcome.into())
    }
}

#[cfg(test)]
mod tests;
