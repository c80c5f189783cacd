"""What processes of tests talk to: receivers, name servers, S3, Sentinels, TLS, Flower, a collector."""
