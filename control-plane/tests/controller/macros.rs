/// Runs each generic test on every backend.
macro_rules! on_each_backend {
    ($($test:ident),+ $(,)?) => {
        mod in_a_cluster {
            $(#[test]
            fn $test() {
                super::$test::<crate::cluster::ClusterWorld>();
            })+
        }
        mod standalone {
            $(#[test]
            fn $test() {
                super::$test::<crate::standalone::StandaloneWorld>();
            })+
        }
    };
}
