#![allow(clippy::unwrap_used)]
use super::*;

fn mk_tokens(text: &str) -> Result<StaticTokens, Error> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens");
    fs::write(&path, text).unwrap();
    StaticTokens::load(path)
}

#[test]
fn tokens_are_whole_lines_and_may_be_bound() {
    let tokens = mk_tokens("# people\nalpha\n\nbeta, evaluator-0\n").unwrap();
    assert!(matches!(
        tokens.find(Some("alpha")),
        Ok(Principal::Anyone { .. })
    ));
    let bound = tokens.find(Some("beta")).unwrap();
    assert!(bound.check("evaluator-0", "default").is_ok());
    let code = bound.check("evaluator-1", "default").unwrap_err().code();
    assert_eq!(code, tonic::Code::PermissionDenied);
    for bad in ["alph", "alpha ", "beta, evaluator-0", "# people"] {
        assert!(
            matches!(tokens.find(Some(bad)), Err(AuthError::Invalid(_))),
            "{bad}"
        );
    }
    for none in [None, Some("")] {
        assert!(matches!(tokens.find(none), Err(AuthError::Missing)));
    }
}

#[test]
fn files_that_let_nobody_in_are_refused() {
    assert!(matches!(mk_tokens("# none\n"), Err(Error::Empty(_))));
    assert!(matches!(
        mk_tokens("a\nb,Not A Name\n"),
        Err(Error::Replica { line: 2, .. })
    ));
    assert!(matches!(
        StaticTokens::load("/no/such/file"),
        Err(Error::Read { .. })
    ));
}
