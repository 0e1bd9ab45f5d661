//! What a caller may cost.

use super::*;

#[tokio::test]
async fn invalid_tokens_of_one_address_are_limited() {
    let (checker, requests) = mk_checker(StatusCode::CREATED, refusal());
    let flood = async |peer: [u8; 4]| {
        for n in 0..1_000 {
            let token = mk_token(&format!("forged-{n}"));
            let peer = Some(IpAddr::from(peer));
            let credential = Credential {
                token: &token,
                peer,
            };
            checker.replica(credential).await.unwrap_err();
        }
    };
    flood([10, 0, 0, 1]).await;
    assert_eq!(requests.take().len(), MAX_INVALID as usize);
    advance(REFUSED);
    flood([10, 0, 0, 2]).await;
    assert_eq!(requests.take().len(), MAX_INVALID as usize);
    advance(INVALID_WINDOW);
    flood([10, 0, 0, 1]).await;
    assert_eq!(requests.take().len(), MAX_INVALID as usize);
}

#[tokio::test]
async fn limited_address_keeps_its_accepted_tokens() {
    let (client, requests) = scripted(member);
    let lookup = Live::new(client.clone(), "assent-system");
    let checker = mk(client, lookup);
    let peer = Some(IpAddr::from([10, 0, 0, 1]));
    let token = mk_token("a");
    let credential = Credential {
        token: &token,
        peer,
    };
    checker.user(credential).await.unwrap();
    requests.take();
    for _ in 0..MAX_INVALID {
        checker.reviewer.count_invalid(peer);
    }
    checker.user(credential).await.unwrap();
    let other = mk_token("b");
    let other = Credential {
        token: &other,
        peer,
    };
    let error = checker.user(other).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert_eq!(requests.take(), Vec::<String>::new());
}

#[tokio::test]
async fn failed_review_is_no_refusal_and_is_repeated() {
    for code in [403, 429, 500, 503] {
        let code = StatusCode::from_u16(code).unwrap();
        let (_, answer) = failure(code.as_u16(), "not now");
        let (checker, requests) = mk_checker(code, answer);
        for _ in 0..2 {
            let error = checker.replica(of(&mk_token("one"))).await.unwrap_err();
            assert!(matches!(error, Error::Unavailable(_)), "{error}");
            assert_eq!(requests.take().len(), 1, "{code}");
        }
        let error = checker.authorize(&User::default(), Verb::Get, None).await;
        assert!(matches!(error, Err(Error::Unavailable(_))), "{error:?}");
    }
}

#[tokio::test]
async fn tokens_that_cannot_be_valid_cost_no_request() {
    let (checker, requests) = mk_checker(StatusCode::CREATED, Value::Null);
    for token in ["", "a b", "a\n", "é", &"x".repeat(MAX_TOKEN + 1)] {
        let error = checker.user(of(token)).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
    }
    let other = URL_SAFE_NO_PAD.encode(r#"{"exp":99999999999,"aud":["other"]}"#);
    for token in ["opaque", &format!("e30.{other}.c2ln")] {
        let error = checker.replica(of(token)).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error}");
    }
    assert_eq!(requests.take().len(), 0);
}

#[tokio::test]
async fn concurrent_calls_with_one_token_share_a_review() {
    let (checker, requests, _) = mk_watched();
    let token = mk_token("a");
    let calls = (0..100).map(|_| checker.user(of(&token)));
    for user in futures::future::join_all(calls).await {
        user.unwrap();
    }
    assert_eq!(requests.take(), [TOKEN_REVIEW]);
}

#[tokio::test]
async fn concurrent_invalid_tokens_of_one_address_are_limited() {
    let (checker, requests) = mk_checker(StatusCode::CREATED, refusal());
    let tokens: Vec<_> = (0..1_000).map(|n| mk_token(&format!("f-{n}"))).collect();
    let peer = Some(IpAddr::from([10, 0, 0, 1]));
    let calls = tokens
        .iter()
        .map(|token| checker.user(Credential { token, peer }));
    for refused in futures::future::join_all(calls).await {
        refused.unwrap_err();
    }
    assert_eq!(requests.take().len(), MAX_INVALID as usize);
}

#[tokio::test]
async fn caller_that_leaves_is_counted() {
    let (checker, requests) = mk_checker(StatusCode::CREATED, refusal());
    let peer = Some(IpAddr::from([10, 0, 0, 1]));
    for n in 0..100 {
        let token = mk_token(&format!("f-{n}"));
        let credential = Credential {
            token: &token,
            peer,
        };
        let mut call = std::pin::pin!(checker.user(credential));
        assert!(futures::poll!(call.as_mut()).is_pending() || n >= MAX_INVALID as usize);
        // The review goes on without it.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(requests.take().len(), MAX_INVALID as usize);
}
