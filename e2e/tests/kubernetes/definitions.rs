//! The definitions of Assent's kinds.

use assent_e2e::{kube::shared, up::condition};

#[tokio::test]
async fn definitions_of_the_chart_are_served() {
    let server = shared().await;
    server.install_crds().await;
    let list = server.kubectl.get(&["crds"]).await;
    let ours = list["items"].as_array().unwrap().iter();
    let ours = ours.filter(|crd| crd["spec"]["group"] == "policies.assent.dev");
    let mut kinds = Vec::new();
    for crd in ours {
        assert_eq!(condition(crd, "Established")["status"], "True", "{crd:#}");
        // A schema that is not structural is stored, and then fields are not kept.
        assert_ne!(
            condition(crd, "NonStructuralSchema")["status"],
            "True",
            "{crd:#}"
        );
        kinds.push(crd["spec"]["names"]["kind"].as_str().unwrap().to_owned());
    }
    for kind in [
        "AdmissionPolicy",
        "ClusterAdmissionPolicy",
        "PolicyRevision",
        "PolicyServer",
    ] {
        assert!(
            kinds.iter().any(|k| k == kind),
            "{kind} is not among {kinds:?}"
        );
    }
}
