package egress

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// Invariant: what is opened is what was written, and nothing that looks like it. Worst inputs: an
// address in a shape that only the C library reads, a wildcard over a top-level domain, a URL.
func TestDestinationsAreReadAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"example.com":             "example.com",
		"Example.COM.":            "example.com",
		"example.com:8443":        "example.com:8443",
		"example.com:080":         "example.com:80",
		"*.example.com":           "*.example.com",
		"*.example.com:443":       "*.example.com:443",
		"xn--bcher-kva.example":   "xn--bcher-kva.example",
		"db":                      "db",
		"1password.com":           "1password.com",
		"localhost:8080":          "localhost:8080",
		"192.0.2.1":               "192.0.2.1",
		"192.0.2.1:9":             "192.0.2.1:9",
		"169.254.169.254":         "169.254.169.254",
		"2001:db8::1":             "2001:db8::1",
		"[2001:db8::1]":           "2001:db8::1",
		"[2001:DB8:0::1]:443":     "[2001:db8::1]:443",
		"[::ffff:192.0.2.1]:443":  "192.0.2.1:443",
		"_dns.resolver.arpa:8443": "_dns.resolver.arpa:8443",
	} {
		d, err := ParseDestination(text)
		if err != nil || d.String() != want {
			t.Errorf("%s: %q, %v, want %q", text, d, err, want)
			continue
		}
		if again, err := ParseDestination(d.String()); err != nil || again != d {
			t.Errorf("%s: read back as %q, %v", d, again, err)
		}
	}
	for text, why := range map[string]string{
		"":                           "names no host",
		"*":                          "no way to open them all",
		"*:443":                      "no way to open them all",
		"*.com":                      "top-level domain",
		"*.localhost":                "top-level domain",
		"*.192.0.2.1":                "below an address",
		"a.*.com":                    "letters, digits",
		"https://example.com":        "not a URL",
		"example.com/path":           "not a URL",
		"user@example.com":           "not a URL",
		"example.com:":               "port is missing",
		"example.com:0":              "1 to 65535",
		"example.com:65536":          "1 to 65535",
		"example.com:https":          "1 to 65535",
		"example.com:+80":            "1 to 65535",
		"exa mple.com":               "letters, digits",
		"bücher.example":             "xn--",
		"example..com":               "is empty",
		"-a.example.com":             "hyphen",
		"2130706433":                 "ends like an address",
		"0x7f000001":                 "ends like an address",
		"127.1":                      "ends like an address",
		"0177.0.0.1":                 "ends like an address",
		"192.0.2.256":                "ends like an address",
		"192.0.2.09":                 "ends like an address",
		"[192.0.2.1]:80":             "brackets are for IPv6",
		"[::1":                       "bracket is missing",
		"fe80::1%eth0":               "zone",
		"fe80::1":                    "zone",
		"0.0.0.0:80":                 "unspecified",
		"[::]:80":                    "unspecified",
		"224.0.0.1":                  "many hosts",
		"255.255.255.255":            "many hosts",
		"ff02::1":                    "many hosts",
		"1:2:3":                      "no address",
		strings.Repeat("a.", 200):    "253",
		strings.Repeat("a", 64):      "63",
		"example.com\nlevel=ERROR":   "letters, digits",
		"exampl\u0435.com":           "xn--",
		"example.com:443:443":        "no address",
		"[2001:db8::1]:443:443":      "bracket",
		"example.com:99999999999999": "1 to 65535",
	} {
		if d, err := ParseDestination(text); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %q, %v, want an error about %q", text, d, err, why)
		}
	}
}

func TestDestinationsAreCountedOnceAndBounded(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range MaxDestinations {
		many = append(many, fmt.Sprintf("h%d.example.com", i))
	}
	if got, err := ParseDestinations(append(many[:99:99], "H0.example.com")); err != nil || len(got) != 99 {
		t.Errorf("%d, %v", len(got), err)
	}
	if got, err := ParseDestinations(many); err != nil || len(got) != MaxDestinations {
		t.Errorf("%d, %v", len(got), err)
	}
	if _, err := ParseDestinations(append(many, "one.more")); err == nil || !strings.Contains(err.Error(), "at most 100") {
		t.Error(err)
	}
}

func TestADestinationCoversWhatItNamesAlone(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		destination, host string
		port              uint16
		want              bool
	}{
		{"example.com", "example.com", 443, true},
		{"example.com", "example.com", 80, true},
		{"example.com", "example.com", 8080, false},
		{"example.com:8080", "example.com", 8080, true},
		{"example.com:8080", "example.com", 443, false},
		{"example.com", "www.example.com", 443, false},
		{"example.com", "example.com.evil.test", 443, false},
		{"example.com", "notexample.com", 443, false},
		{"*.example.com", "www.example.com", 443, true},
		{"*.example.com", "a.b.example.com", 443, true},
		{"*.example.com", "example.com", 443, false},
		{"*.example.com", "evilexample.com", 443, false},
		{"192.0.2.1", "192.0.2.1", 443, true},
		{"192.0.2.1", "192.0.2.2", 443, false},
		{"2001:db8::1", "2001:db8:0::1", 443, true},
		{"::ffff:192.0.2.1", "192.0.2.1", 443, true},
		{"localhost", "127.0.0.1", 80, false},
		{"127.0.0.1", "localhost", 80, false},
	} {
		d, err := ParseDestination(tt.destination)
		if err != nil {
			t.Fatal(err)
		}
		name, addr, err := parseHost(tt.host)
		if err != nil {
			t.Fatal(err)
		}
		if got := d.covers(name, addr, tt.port); got != tt.want {
			t.Errorf("%s covers %s port %d: %v", d, tt.host, tt.port, got)
		}
	}
}

func TestWhatAnAddressIs(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"8.8.8.8": "", "1.1.1.1": "", "2606:4700:4700::1111": "", "64:ff9b::8.8.8.8": "",
		"172.15.255.255": "", "172.32.0.0": "", "100.63.255.255": "", "100.128.0.0": "", "169.253.0.1": "", "::ffff:8.8.8.8": "",
		"127.0.0.1": "loopback", "127.255.255.255": "loopback", "::1": "loopback", "::ffff:127.0.0.1": "loopback",
		"64:ff9b::127.0.0.1": "loopback", "64:ff9b::a00:1": "private", "64:ff9b:1::8.8.8.8": "reserved", "::127.0.0.1": "reserved",
		"10.0.0.1": "private", "172.16.0.1": "private", "172.31.255.255": "private", "192.168.1.1": "private",
		"fd00:ec2::254": "private", "fc00::1": "private",
		"169.254.1.1": "link-local", "fe80::1": "link-local", "fec0::1": "site-local",
		"169.254.169.254": "a cloud's metadata service", "168.63.129.16": "a cloud's metadata service", "::ffff:169.254.169.254": "a cloud's metadata service",
		"64:ff9b::169.254.169.254": "a cloud's metadata service",
		"100.64.0.1":               "shared by a provider's customers", "100.100.100.200": "shared by a provider's customers",
		"0.0.0.0": "unspecified", "0.1.2.3": "unspecified", "::": "unspecified",
		"224.0.0.1": "multicast", "239.1.1.1": "multicast", "ff02::1": "multicast", "255.255.255.255": "reserved", "240.0.0.1": "reserved",
		"192.0.2.1": "for documentation", "2001:db8::1": "for documentation", "198.18.0.1": "for benchmarks", "192.0.0.170": "reserved",
		"2002:7f00:1::": "of a tunnel", "2001::1": "of a tunnel or reserved", "100::1": "reserved", "5f00::1": "reserved", "fe80::1%lo": "of one interface",
	} {
		if got := kind(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

func TestPace(t *testing.T) {
	t.Parallel()
	p := &pace{every: time.Hour, burst: 3 * time.Hour}
	for i := range 3 {
		if !p.now() {
			t.Errorf("request %d of the burst was held up", i)
		}
	}
	for range 100 {
		if p.now() {
			t.Fatal("a request beyond the burst passed at once")
		}
	}
	// Those that gave up have not used up a turn.
	if wait := p.take(); wait > p.every {
		t.Errorf("the next one waits %s", wait)
	}
	if made := newPace(20, 200); made.every != 50*time.Millisecond || made.burst != 10*time.Second {
		t.Errorf("20 a second and 200 at once: one every %s, %s ahead", made.every, made.burst)
	}
}

func FuzzParseDestination(f *testing.F) {
	for _, text := range []string{"example.com", "*.a.b:1", "[::1]:80", "127.1", "::ffff:1.2.3.4", "[a]:b"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := ParseDestination(text)
		if err != nil {
			return
		}
		again, err := ParseDestination(d.String())
		if err != nil || again != d {
			t.Errorf("%q became %q and then %q, %v", text, d, again, err)
		}
		if d.addr.IsValid() == (d.host != "") {
			t.Errorf("%q is a name and an address, or neither: %#v", text, d)
		}
	})
}
