// Command cluster is every program of a Kubernetes cluster in one binary: `cluster ROLE ARGUMENTS`.
//
// One binary instead of seven links the packages that they share once: a third of the build time and of the disk.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // the client metrics that the real programs have
	_ "k8s.io/component-base/metrics/prometheus/restclient"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

const wrongUse = 2

// roles run with os.Args as the program of that name would have it, and return its exit status.
var roles = map[string]func() int{
	"etcd":                    runEtcd,
	"kube-apiserver":          component(apiserver.NewAPIServerCommand),
	"kube-controller-manager": component(controllermanager.NewControllerManagerCommand),
	"kube-proxy":              component(proxy.NewProxyCommand),
	"kube-scheduler":          component(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kubelet":                 component(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	"kubectl":                 runKubectl,
}

func main() {
	if len(os.Args) < 2 {
		explainAndExit("name the program to run")
	}
	run, known := roles[os.Args[1]]
	if !known {
		explainAndExit(fmt.Sprintf("there is no program %q", os.Args[1]))
	}
	os.Args = os.Args[1:]
	os.Exit(run())
}

func explainAndExit(problem string) {
	names := slices.Sorted(maps.Keys(roles))
	fmt.Fprintf(os.Stderr, "cluster: %s: one of %s\n", problem, strings.Join(names, ", "))
	os.Exit(wrongUse)
}

func component(command func() *cobra.Command) func() int {
	return func() int { return cli.Run(command()) }
}

func runEtcd() int {
	etcdmain.Main(os.Args) // ends the process itself when etcd fails
	return 0
}

func runKubectl() int {
	// As kubectl's own main does it: cobra prints nothing, CheckErr prints a server's refusal as people know it.
	kubectlutil.CheckErr(cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()))
	return 0
}
