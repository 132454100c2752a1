#!/bin/sh
exec java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmx128m -cp '/opt/kafka/libs/*' \
    org.apache.kafka.tools.BrokerApiVersionsCommand "$@"
