//! Asks the API server what the author of an object may do.

use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use k8s_openapi::api::{
    authentication::v1::UserInfo,
    authorization::v1::{SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};

use super::{permissions::Access, review::Verdict};

/// Shorter than the API server waits for the webhook, so that its user reads the reason.
const TIMEOUT: Duration = Duration::from_secs(8);

/// Answers whether users may do something.
pub trait Authorizer: Send + Sync + 'static {
    /// Whether the review allows it, or why nobody could say.
    fn allows(&self, review: SubjectAccessReviewSpec) -> BoxFuture<'_, Result<bool, String>>;
}

/// Something that the author must be allowed to do.
pub(super) trait Permission: Sync {
    /// The question whether `user` may do it.
    fn review(&self, user: &UserInfo) -> SubjectAccessReviewSpec;

    /// What a user is told who may not do it.
    fn refusal(&self, user: &UserInfo) -> String;
}

/// Asks by SubjectAccessReview.
pub struct ApiAuthorizer(pub Client);

/// Refuses what `user` may not do, with every reason at once. What could not be asked is
/// refused too: nothing is let in that nobody checked.
pub(super) async fn authorize(
    authorizer: &dyn Authorizer,
    user: &UserInfo,
    required: &[impl Permission],
) -> Option<Verdict> {
    let answers = required.iter().map(|access| async move {
        let answer = authorizer.allows(access.review(user));
        let answer = tokio::time::timeout(TIMEOUT, answer).await;
        answer.unwrap_or_else(|_| Err("no answer from the API server".to_owned()))
    });
    let mut refusals = Vec::new();
    for (access, answer) in required.iter().zip(join_all(answers).await) {
        match answer {
            Ok(true) => {}
            Ok(false) => refusals.push(access.refusal(user)),
            Err(why) => {
                return Some(Verdict::later(format!(
                    "failed to check what the author may do: {why}; try again in a moment"
                )));
            }
        }
    }
    (!refusals.is_empty()).then(|| Verdict::forbidden(refusals.join("; ")))
}

// === impl ApiAuthorizer ===

impl Authorizer for ApiAuthorizer {
    fn allows(&self, spec: SubjectAccessReviewSpec) -> BoxFuture<'_, Result<bool, String>> {
        Box::pin(async move {
            let api: Api<SubjectAccessReview> = Api::all(self.0.clone());
            let review = SubjectAccessReview {
                spec,
                ..SubjectAccessReview::default()
            };
            let answer = api.create(&PostParams::default(), &review).await;
            let status = answer.map_err(|error| error.to_string())?.status;
            let status = status.unwrap_or_default();
            Ok(status.allowed && status.denied != Some(true))
        })
    }
}

// === impl Access ===

impl Permission for Access {
    fn review(&self, user: &UserInfo) -> SubjectAccessReviewSpec {
        Access::review(self, user)
    }

    fn refusal(&self, user: &UserInfo) -> String {
        Access::refusal(self, user)
    }
}
